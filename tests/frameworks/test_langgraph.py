"""The saver for LangGraph: its conformance suite, lists stored by element, kills, two processes, and retention."""

from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import ALL_CAPABILITIES

from holdfast.frameworks.langgraph import HoldfastSaver
from tests.conftest import Engine


@pytest.fixture
def url(engine: Engine) -> str:
    if not engine.shared:
        pytest.skip("a store in memory cannot be used from another thread")
    return engine.url


@pytest.fixture
def saver(url: str) -> Generator[HoldfastSaver, None, None]:
    saver = HoldfastSaver(url)
    yield saver
    saver.close()


async def test_the_conformance_suite_of_langgraph_passes_with_every_capability(url: str):
    async def new_saver() -> AsyncGenerator[HoldfastSaver, None]:
        saver = HoldfastSaver(url)
        yield saver
        saver.close()

    report = await validate(checkpointer_test(name="HoldfastSaver")(new_saver))
    results: dict[str, Any] = report.to_dict()["results"]
    assert results.keys() == {capability.value for capability in ALL_CAPABILITIES}
    for result in results.values():
        assert result["failures"] == []
        assert (result["detected"], result["passed"], result["tests_skipped"]) == (True, True, 0)
    assert sum(result["tests_passed"] for result in results.values()) == 81
