"""Credentials of a session: for tools, sealed at rest, gone when they expire, and nowhere else."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent

from holdfast import Store
from holdfast.errors import BadInput, BadSettings, CredentialSealed, SessionCleaned, SessionNotFound
from holdfast.runtime import current_session
from holdfast.runtime.credentials import Credentials, new_key
from tests.builders import held_session
from tests.conftest import Engine
from tests.record.agents import call, scripted
from tests.runtime.agents import ended, send, texts, working

SECRET = "a-token-that-nobody-may-see"


@pytest.fixture
async def session(store: Store) -> str:
    return (await store.create_session(agent="agent", owner="you")).id


async def test_a_tool_gets_it_and_nothing_else_does(
    engine: Engine, store: Store, session: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    key = new_key()
    seen: list[str | None] = []

    async def act() -> str:
        here = current_session()
        assert here is not None
        seen.extend([await here.credential("token"), await here.credential("other")])
        assert SECRET not in repr(here)
        assert key not in repr(here)
        return "acted"

    await Credentials(store, key).set(session, "token", SECRET)
    async with working(store, Agent(scripted([call("act")]), tools=[act]), credential_key=key):
        assert (await ended(store, await send(store, session, "act"))).state == "done"
    assert seen == [SECRET, None]
    assert SECRET not in await texts(store, session)
    assert not [event for event in await store.events(session) if SECRET in event.payload]
    assert SECRET not in caplog.text
    assert SECRET not in str(await store.credentials(session))
    if engine.name == "sqlite":
        assert not [file for file in tmp_path.iterdir() if SECRET.encode() in file.read_bytes()]


async def test_without_a_key_a_tool_is_told_so(store: Store, session: str):
    async def act() -> Any:
        here = current_session()
        assert here is not None
        return await here.credential("token")

    async with working(store, Agent(scripted([call("act")]), tools=[act])):
        failed = await ended(store, await send(store, session, "act"))
    assert (failed.state, "credential_key is not set" in str(failed.reason)) == ("failed", True)


async def test_set_again_removed_and_expired(store: Store, session: str):
    kept = Credentials(store, new_key())
    await kept.set(session, "token", "first")
    await kept.set(session, "token", "second")
    await kept.set(session, "short", "lived", ttl=0.05)
    assert await kept.get(session, "token") == "second"
    async with asyncio.timeout(10):
        while await kept.get(session, "short") is not None:
            await asyncio.sleep(0.01)
    assert await kept.names(session) == ["token"]
    await kept.remove(session, "token")
    await kept.remove(session, "token")
    assert await kept.names(session) == []


async def test_a_seal_is_bound_to_its_session_its_name_and_its_key(store: Store, session: str):
    old, new = new_key(), new_key()
    await Credentials(store, old).set(session, "token", SECRET)
    ((sealed),) = [item.sealed for item in await store.credentials(session)]
    other = (await store.create_session(agent="agent", owner="eve")).id
    await store.set_credential(other, "token", sealed)
    await store.set_credential(session, "else", sealed)
    for place in ((other, "token"), (session, "else")):
        with pytest.raises(CredentialSealed):
            await Credentials(store, old).get(*place)
    with pytest.raises(CredentialSealed):
        await Credentials(store, new).get(session, "token")
    assert await Credentials(store, f"{new}, {old}").get(session, "token") == SECRET  # a new key, slowly
    await store.set_credential(session, "token", "2.from-the-future")
    with pytest.raises(CredentialSealed):
        await Credentials(store, old).get(session, "token")


@pytest.mark.parametrize(
    "key",
    [None, "", "short", "no base64 ☃", new_key() + ",x"],
    ids=["none", "empty", "short", "no base64", "one bad"],
)
async def test_a_bad_key_is_refused(store: Store, key: str | None):
    with pytest.raises(BadSettings):
        Credentials(store, key)


async def test_bad_input(store: Store, session: str):
    for ttl in (0, -1, float("inf"), float("nan")):
        with pytest.raises(BadInput):
            await store.set_credential(session, "token", "x", ttl=ttl)
    with pytest.raises(SessionNotFound):
        await store.set_credential("nobody", "token", "x")
    with pytest.raises(SessionNotFound):
        await store.credentials("nobody")
    lease, _ = await held_session(store)
    await store.delete_content(lease)
    with pytest.raises(SessionCleaned):
        await store.set_credential(lease.session_id, "token", "x")
