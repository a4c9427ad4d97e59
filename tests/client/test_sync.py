"""The blocking client. It is generated, so these tests are about what it adds: a loop in a thread, and its types."""

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest

from holdfast import connect_sync, event_loop
from holdfast.client import sync
from holdfast.client.client import Client
from holdfast.client.run import RunHandle
from holdfast.client.session import SessionHandle
from holdfast.client.shell import ShellHandle
from holdfast.client.turn import TurnHandle
from holdfast.errors import ApprovalNeeded, SessionNotFound
from scripts import make_sync
from tests.client.agents import AGENTS, Invoice, clerk

HANDLES = [Client, SessionHandle, TurnHandle, RunHandle, ShellHandle]


def test_the_generated_module_is_up_to_date():
    assert make_sync.TARGET.read_text() == make_sync.text(), "run `make generate`"


@pytest.mark.parametrize("handle", HANDLES, ids=lambda kind: kind.__name__)
def test_every_method_has_a_blocking_one_with_the_same_parameters(handle: type[Any]):
    blocking = getattr(sync, f"Sync{handle.__name__}")
    for name, method in inspect.getmembers(handle, callable):
        if not name.startswith("_"):
            same = [*inspect.signature(getattr(blocking, name)).parameters]
            assert same == [*inspect.signature(method).parameters], name


def test_a_conversation_without_asyncio(tmp_path: Path):
    with connect_sync(f"sqlite:///{tmp_path}/store.db", agents=AGENTS) as hf:
        session = hf.session("letters", agent="echo")
        assert session.send("hello").result() == "1: hello"
        events = session.events()
        assert [next(events).seq for _ in range(3)] == [1, 2, 3]
        events.close()
        assert hf.session(agent=clerk).send("invoice").result() == Invoice(customer="Ada", total=12)
        assert session.fork().send("more").result() == "2: more"
        paying = hf.session(agent="payer")
        turn = paying.send("pay")
        with pytest.raises(ApprovalNeeded) as needed:
            turn.result()
        for call in needed.value.calls:
            paying.approve(call)
        assert turn.result() == "answered paid 5"
        with pytest.raises(SessionNotFound):
            hf.session("nowhere")
        assert repr(session) == "SyncSessionHandle(id='letters')"


def test_the_loop_ends_with_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made: list[event_loop.EventLoop] = []
    new = event_loop.EventLoop

    def noted() -> event_loop.EventLoop:
        made.append(new())
        return made[-1]

    monkeypatch.setattr(sync, "EventLoop", noted)
    with pytest.raises(ZeroDivisionError), connect_sync(f"sqlite:///{tmp_path}/store.db"):
        raise ZeroDivisionError
    assert not made[0]._thread.is_alive()


async def test_it_works_in_a_thread_beside_an_event_loop(tmp_path: Path):
    def talk() -> str:
        with connect_sync(f"sqlite:///{tmp_path}/store.db", agents=AGENTS) as hf:
            return hf.session(agent="echo").send("hi").result()

    assert await asyncio.to_thread(talk) == "1: hi"
