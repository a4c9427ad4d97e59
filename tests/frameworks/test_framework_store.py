"""What the adapters share: sessions by name, writes under a lease from any thread, and two processes that take turns."""

import asyncio
import json
import math
import subprocess
import sys
from collections.abc import Generator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import BadInput, MissingExtra, SessionBusy, SessionCleaned, UnknownStore
from holdfast.frameworks import framework_store
from holdfast.frameworks.bodies import from_body, to_body
from holdfast.frameworks.framework_store import FrameworkStore, check_version
from holdfast.media import open_media
from holdfast.retention import clean
from holdfast.store import open_store
from holdfast.types import Record
from tests.conftest import Engine

pytestmark = pytest.mark.processes  # a store in memory cannot be used from another thread


@pytest.fixture
def shared(engine: Engine) -> Generator[FrameworkStore, None, None]:
    store = FrameworkStore(engine.url, framework="test")
    yield store
    store.close()


def record(key: str, body: object = 1) -> Record:
    return Record(kind="item", key=key, body=json.dumps(body))


async def put(store: FrameworkStore, name: str, *keys: str) -> None:
    async with store.writing(await store.ensure_id(name)) as writer:
        await writer.write([record(key) for key in keys])


async def keys(store: FrameworkStore, name: str) -> list[str]:
    session = await store.find(name)
    return [] if session is None else [found.key for found in await store.records(session.id, "item")]


def test_a_name_may_have_any_characters_and_be_used_again_after_an_erase(shared: FrameworkStore):
    for name in ("a/b", "a b", "ä\n漢", "x" * 5000, "", "\ud800"):
        for _ in range(2):
            assert shared.run(keys(shared, name)) == []
            shared.run(put(shared, name, "1"))
            assert shared.run(keys(shared, name)) == ["1"]
            shared.run(shared.erase(name))
        shared.run(shared.erase(name))
    assert shared.run(keys(shared, "a/b")) == []


@pytest.mark.parametrize("place", [":memory:", Path(":memory:"), "sqlite://:memory:", "sqlite:///:memory:"])
def test_memory_as_a_path_is_a_store_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str | Path
):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        shared = FrameworkStore(place, framework="test")
        assert shared.run(keys(shared, "s")) == []
        shared.run(put(shared, "s", "1"))
        assert shared.run(keys(shared, "s")) == ["1"]
        shared.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["file::memory:?cache=shared", "file:s.db", "sqlite:s.db", "redis://x"])
def test_a_url_that_is_unknown_is_refused_at_once_and_is_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownStore, match=r"sqlite:///path/file[.]db"):
        FrameworkStore(place, framework="test")
    assert list(tmp_path.iterdir()) == []


def test_any_thread_and_any_event_loop_can_use_it(shared: FrameworkStore):
    async def work(key: str) -> list[str]:
        await shared.call(put(shared, "s", key))
        return await shared.call(keys(shared, "s"))

    assert asyncio.run(work("1")) == ["1"]
    assert asyncio.run(work("2")) == ["1", "2"]
    shared.run(put(shared, "s", "3"))
    assert asyncio.run(work("4")) == ["1", "2", "3", "4"]


def test_two_of_them_take_turns(engine: Engine, shared: FrameworkStore):
    other = FrameworkStore(engine.url, framework="test")
    try:
        for number in range(4):
            (shared if number % 2 else other).run(put(shared if number % 2 else other, "s", str(number)))
        assert shared.run(keys(shared, "s")) == ["0", "1", "2", "3"]
    finally:
        other.close()


def test_a_session_that_is_held_elsewhere_is_busy(
    engine: Engine, shared: FrameworkStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(framework_store, "_PATIENCE_SECONDS", 0.2)
    other = FrameworkStore(engine.url, framework="test")

    async def hold() -> None:
        async with other.writing(await other.ensure_id("s")):
            with pytest.raises(SessionBusy):
                await shared.call(put(shared, "s", "1"))

    try:
        other.run(hold())
    finally:
        other.close()
    shared.run(put(shared, "s", "1"))


def test_an_erase_waits_for_another_process(engine: Engine, shared: FrameworkStore):
    other = FrameworkStore(engine.url, framework="test")
    try:
        other.run(put(other, "s", "1"))  # holds it a little longer
        shared.run(shared.erase("s"))
        assert shared.run(keys(shared, "s")) == other.run(keys(other, "s")) == []
        other.run(put(other, "s", "2"))
        assert shared.run(keys(shared, "s")) == ["2"]
    finally:
        other.close()


async def test_a_cleaned_session_raises(engine: Engine, shared: FrameworkStore):
    await shared.call(put(shared, "s", "1"))
    session = await shared.call(shared.ensure("s"))
    await asyncio.sleep(2 * framework_store._IDLE_SECONDS)
    async with open_store(engine.url) as store:
        await clean(store, open_media(store=store), session.id, idle_days=0, force=True, actor="you")
    with pytest.raises(SessionCleaned):
        await shared.call(keys(shared, "s"))
    with pytest.raises(SessionCleaned):
        await shared.call(put(shared, "s", "2"))


def test_the_path_of_a_file_is_enough_and_after_close_nothing_works(tmp_path: Path):
    store = FrameworkStore(tmp_path / "s.db", framework="test")
    store.run(put(store, "s", "1"))
    store.close()
    store.close()
    again = FrameworkStore(str(tmp_path / "s.db"), framework="test")
    assert again.run(keys(again, "s")) == ["1"]
    again.close()
    with pytest.raises(BadInput, match="closed"):
        again.run(keys(again, "s"))


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else []


@pytest.mark.parametrize(
    "value",
    [{"a": [1, None, "ä\n\0\ud800"]}, "text", '"text"', math.inf, 10**400, nested(200), [0] * 200_000],
    ids=lambda value: repr(value)[:20],
)
def test_every_value_that_a_framework_can_write_comes_back(shared: FrameworkStore, value: object):
    async def write_and_read() -> Any:
        session_id = await shared.ensure_id("s")
        async with shared.writing(session_id) as writer:
            await writer.write([Record(kind="item", key="1", body=to_body(value))])
        (found,) = await shared.records(session_id, "item")
        return from_body(found.body)

    assert shared.run(write_and_read()) == value


def test_a_version_that_is_not_supported_is_named():
    check_version("pytest", extra="testing", at_least=(1,), below=(1000,))
    with pytest.raises(MissingExtra, match=r"holdfast\[testing\]"):
        check_version("no-such-package", extra="testing", at_least=(1,), below=(2,))
    for at_least, below in (((0, 1), (0, 2)), ((1000,), (1001,))):
        with pytest.raises(BadInput, match=f"pytest {version('pytest')} is installed"):
            check_version("pytest", extra="testing", at_least=at_least, below=below)


def test_a_process_that_does_not_close_it_ends_quietly_and_without_its_leases(tmp_path: Path):
    program = f"""
import asyncio
from holdfast.frameworks.framework_store import FrameworkStore
store = FrameworkStore({str(tmp_path / "s.db")!r}, framework="test")
async def hold():
    async with store.writing(await store.ensure_id("s")) as writer:
        await writer.write()
store.run(hold())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    store = FrameworkStore(tmp_path / "s.db", framework="test")
    session = store.run(store.find("s"))
    store.close()
    assert session is not None
    assert session.holder is None


async def test_a_session_is_idle_since_its_last_write_not_since_it_was_created(
    shared: FrameworkStore, engine: Engine
):
    """A policy that cleans idle sessions must not clean one that was written to."""
    await shared.call(put(shared, "talk", "1"))
    async with open_store(engine.url) as store:
        (session,) = (await store.sessions()).items
        while (await store.session(session.id)).holder is not None:
            await asyncio.sleep(0.02)
        await shared.call(put(shared, "talk", "2"))
        later = await store.session(session.id)
    assert later.active_at > session.active_at
    assert later.status == "idle"


async def test_a_session_of_someone_else_is_not_used(shared: FrameworkStore, engine: Engine):
    """Ids can be guessed, and clients may choose theirs."""
    session_id = (await shared.call(shared.ensure("talk"))).id
    await shared.call(shared.erase("talk"))
    other = FrameworkStore(engine.url, framework="test", owner="local")
    try:
        async with open_store(engine.url) as store:
            await store.create_session(agent="bot", owner="bob", id=f"{session_id}-1")
            await store.create_session(agent="test", owner="bob", id=f"{session_id}-2")
        own = await other.call(other.ensure("talk"))
        assert (own.id, own.owner) == (f"{session_id}-3", "local")
        await shared.call(put(shared, "talk", "1"))
        assert await other.call(keys(other, "talk")) == ["1"]
    finally:
        other.close()


async def test_many_sessions_of_a_stranger_at_predictable_ids_cost_no_more_reads(
    shared: FrameworkStore, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    base_id = (await shared.call(shared.ensure("talk"))).id
    await shared.call(shared.erase("talk"))
    async with open_store(engine.url) as store:
        for number in [*range(1, 200), 255, 511, 1023, 10**60]:
            await store.create_session(agent="test", owner="bob", id=f"{base_id}-{number}")
    own = await shared.call(shared.ensure("talk"))
    assert (own.id, own.owner) == (f"{base_id}-200", "local")
    async with open_store(engine.url) as store:  # afterwards, and before it, too
        await store.create_session(agent="test", owner="bob", id=f"{base_id}-201")
        await store.create_session(agent="bot", owner="local", id=f"{base_id}-x")
    other = FrameworkStore(engine.url, framework="test")
    try:
        other.open()
        made: list[str] = []
        for name in ("session", "erased_at"):
            original = getattr(other.store, name)

            def noted(*given: Any, _name: str = name, _call: Any = original, **more: Any) -> Any:
                made.append(_name)
                return _call(*given, **more)

            monkeypatch.setattr(other.store, name, noted)
        found = await other.call(other.find("talk"))
        assert found is not None
        assert found.id == own.id
        assert len(made) <= 2
    finally:
        other.close()


async def test_a_name_that_was_erased_often_is_found_in_another_process(
    shared: FrameworkStore, engine: Engine
):
    for number in range(12):
        session = await shared.call(shared.ensure("talk"))
        assert session.id.endswith(f"-{number}" if number else session.id)
        await shared.call(shared.erase("talk"))
    own = await shared.call(shared.ensure("talk"))
    other = FrameworkStore(engine.url, framework="test")
    try:
        found = await other.call(other.find("talk"))
        assert found is not None
        assert found.id == own.id
        assert own.id.endswith("-12")
    finally:
        other.close()


async def test_a_write_whose_caller_was_cancelled_is_stored_before_the_next_one(shared: FrameworkStore):
    async def add(*names: str) -> None:
        """Number the records as an adapter does."""
        session_id = await shared.ensure_id("talk")
        async with shared.writing(session_id) as writer:
            number = len(await shared.records(session_id, "item"))
            await writer.write([record(f"{number + n:03}", name) for n, name in enumerate(names)])

    async def stored() -> list[str]:
        session_id = await shared.ensure_id("talk")
        return [json.loads(one.body) for one in await shared.records(session_id, "item")]

    expected: list[str] = []
    for turn in range(40):
        task = asyncio.create_task(shared.call(add(f"{turn} a", f"{turn} b")))
        await asyncio.sleep(turn / 10_000)
        task.cancel()
        await asyncio.wait([task])
        await shared.call(add(f"{turn} c"))
        expected += [f"{turn} a", f"{turn} b", f"{turn} c"]
    found = await shared.call(stored())
    begun = [name for name in expected if name in found]  # a task may be cancelled before it begins
    assert found == begun
    assert all((f"{turn} a" in found) == (f"{turn} b" in found) for turn in range(40))
    assert all(f"{turn} c" in found for turn in range(40))
