"""The keeper renews a holder whatever happens around it."""

import gc
import resource
from pathlib import Path

import pytest

from holdfast.runtime.keeper import Keeper
from holdfast.store import open_store
from tests.builders import until


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_keeper_that_finds_no_file_descriptors_starts_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """Else its holder would be taken for dead, and its sessions taken from a worker that goes on with them."""
    lost: list[bool] = []
    async with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        holder = await store.join("kept", ttl=20)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            keeper = Keeper(store, holder, every=0.05, lost=lambda: lost.append(True), loop_timeout=30)

            async def has_tried() -> bool:
                return "cannot start yet" in caplog.text

            await until(has_tried, 5)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

        async def is_renewed() -> bool:
            (found,) = await store.holders()
            return found.deadline > holder.deadline

        await until(is_renewed, 5)
        await keeper.stop()
    assert not lost
    caplog.clear()
    gc.collect()  # event loops that could not be made complain now, not in another test
