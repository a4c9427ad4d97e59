"""Promise 6: whatever was killed whenever, the next message works and the history is valid for a provider."""

import pytest

from tests.conftest import Boundaries
from tests.promises.driver import Crash, every_point

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]


async def test_the_next_message_works_after_a_kill_at_every_boundary(crash: Crash, boundaries: Boundaries):
    for facts in await crash.run("report", "continue", boundaries.of(await every_point(crash))):
        assert facts["ended"] == -9, facts
        assert facts["went"] == 0, facts
        assert facts["output"] == "went on", facts
        assert facts["valid"], facts
        assert facts["whole"], facts
        assert facts["violations"] == [], facts
        # Closing what was left open runs no tool.
        assert facts["log"] == facts["before"], facts
