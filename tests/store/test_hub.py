import asyncio

from holdfast.store.hub import Hub


async def test_rings_for_the_readers_of_a_session_only():
    hub = Hub()
    with hub.listen("a", 0) as mine, hub.listen("b", 0) as other:
        hub.changed(["a"])
        await asyncio.wait_for(mine.bell.wait(), 1)
        assert not other.bell.is_set()


async def test_rings_for_those_who_are_behind_or_whose_session_is_gone():
    hub = Hub()
    with hub.listen("a", 5) as current, hub.listen("a", 3) as behind, hub.listen("gone", 9) as orphan:
        hub.at({"a": 5, "gone": -1})
        await asyncio.wait_for(behind.bell.wait(), 1)
        await asyncio.wait_for(orphan.bell.wait(), 1)
        assert not current.bell.is_set()


async def test_rings_from_other_threads():
    hub = Hub()
    with hub.listen("a", 0) as signal:
        await asyncio.to_thread(hub.wake_all)
        await asyncio.wait_for(signal.bell.wait(), 1)


async def test_forgets_who_left():
    hub = Hub()
    with hub.listen("a", 0):
        assert hub.topics() == ["a"]
        assert hub.has_readers.is_set()
    assert hub.topics() == []
    assert not hub.has_readers.is_set()
