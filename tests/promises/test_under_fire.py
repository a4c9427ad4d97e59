"""All promises at once: workers, fronts and the database are killed and paused while clients submit and stream.

The long form is `make torture`; see docs/reliability.md.
"""

import sys
from pathlib import Path

import pytest

from tests.torture.drill import Plan, report, torture

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_nothing_breaks_while_everything_is_hit(engine: str, tmp_path: Path, long: bool):
    plan = Plan(
        engine=engine,
        duration=60 if long else 12,
        seed=11,
        sessions=20,
        workers=2,
        submitters=4,
        open=20,
        pace=0.6,
    )
    outcome = await torture(plan, tmp_path, lambda text: print(text, file=sys.stderr))
    print(report(outcome))
    assert outcome.holds
    assert outcome.facts["kills and pauses"] >= 5
    assert outcome.facts["submissions accepted"] >= 10  # PostgreSQL accepts few on a busy machine
