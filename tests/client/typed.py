"""The types of results, events and handles. Pyright checks this module; nothing runs it."""

from typing import assert_type

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.messages import ModelRequest, ModelResponse

import holdfast
from holdfast import Checkpoint, Client, SessionHandle, TurnHandle
from holdfast.api.models import SessionInfo
from holdfast.client.sync import SyncSessionHandle
from holdfast.events import ApprovalRequest, DraftText


class Invoice(BaseModel):
    total: int


clerk = Agent("test", output_type=Invoice)
bot = Agent("test")


async def handles() -> None:
    async with holdfast.connect("sqlite:///x.db") as hf:
        assert_type(hf, Client)
        named = await hf.session("a", agent="bot")
        assert_type(named, SessionHandle[str])
        assert_type(await hf.session("a"), SessionHandle[str])
        typed = await hf.session(agent=clerk)
        assert_type(typed, SessionHandle[Invoice])
        assert_type(await hf.session(agent="clerk", output_type=Invoice), SessionHandle[Invoice])
        turn = await typed.send("hello")
        assert_type(turn, TurnHandle[Invoice])
        assert_type(await turn.result(), Invoice)
        assert_type(await turn, Invoice)
        assert_type(await (await named.send("hello")), str)
        assert_type(await typed.fork(), SessionHandle[Invoice])
        assert_type(await (await typed.undo()), None)
        async for event in typed.events():
            if event.kind == "tool_call_started":
                assert_type(event.tool, str)
            match event:
                case holdfast.events.ApprovalRequested():
                    assert_type(event.calls, list[ApprovalRequest])
                case holdfast.events.MessageAdded():
                    assert_type(event.message, ModelRequest | ModelResponse)
                case _:
                    pass
        async for item in typed.events(drafts=True):
            if isinstance(item, DraftText):
                assert_type(item.text, str)
        async for session in hf.sessions():
            assert_type(session, SessionInfo)


async def functions(store: holdfast.Store, checkpoint: Checkpoint) -> None:
    assert_type((await holdfast.resume(clerk, store, "run")).output, Invoice)
    assert_type((await holdfast.continue_session(bot, store, "s", "hello")).output, str)
    assert_type(await holdfast.fork(store, checkpoint), str)
    assert_type(await holdfast.rewind(store, checkpoint), Checkpoint)


def blocking() -> None:
    with holdfast.connect_sync() as hf:
        session = hf.session(agent=clerk)
        assert_type(session, SyncSessionHandle[Invoice])
        assert_type(session.send("hello").result(), Invoice)
        for event in session.events():
            assert_type(event.seq, int)
