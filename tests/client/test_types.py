"""What a type checker sees: results, events and handles. Pyright checks these functions; nothing runs them."""

import json
import subprocess
import sys
from pathlib import Path

CODE = """
from typing import reveal_type

from pydantic import BaseModel
from pydantic_ai import Agent

import holdfast
from holdfast.events import Draft


class Invoice(BaseModel):
    total: int


clerk = Agent("test", output_type=Invoice)
bot = Agent("test")


async def handles() -> None:
    async with holdfast.connect("sqlite:///x.db") as hf:
        reveal_type(hf)  # Client
        named = await hf.session("a", agent="bot")
        reveal_type(named)  # SessionHandle[str]
        reveal_type(await hf.session("a"))  # SessionHandle[str]
        typed = await hf.session(agent=clerk)
        reveal_type(typed)  # SessionHandle[Invoice]
        reveal_type(await hf.session(agent="clerk", output_type=Invoice))  # SessionHandle[Invoice]
        turn = await typed.send("hello")
        reveal_type(turn)  # TurnHandle[Invoice]
        reveal_type(await turn.result())  # Invoice
        reveal_type(await turn)  # Invoice
        reveal_type(await (await named.send("hello")))  # str
        reveal_type(await typed.fork())  # SessionHandle[Invoice]
        reveal_type(await (await typed.undo()))  # None
        async for event in typed.events():
            if event.kind == "tool_call_started":
                reveal_type(event.tool)  # str
            match event:
                case holdfast.events.ApprovalRequested():
                    reveal_type(event.calls)  # list[ApprovalRequest]
                case holdfast.events.MessageAdded():
                    reveal_type(event.message)  # ModelRequest | ModelResponse
                case _:
                    pass
        async for item in typed.events(drafts=True):
            if isinstance(item, Draft):
                reveal_type(item.text)  # str
        async for session in hf.sessions():
            reveal_type(session)  # SessionInfo


async def functions(store: holdfast.Store, checkpoint: "holdfast.Checkpoint") -> None:
    reveal_type((await holdfast.resume(clerk, store, "run")).output)  # Invoice
    reveal_type((await holdfast.continue_session(bot, store, "s", "hello")).output)  # str
    reveal_type(await holdfast.fork(store, checkpoint))  # str
    reveal_type(await holdfast.rewind(store, checkpoint))  # Checkpoint


def blocking() -> None:
    with holdfast.connect_sync() as hf:
        session = hf.session(agent=clerk)
        reveal_type(session)  # SyncSessionHandle[Invoice]
        reveal_type(session.send("hello").result())  # Invoice
        for event in session.events():
            reveal_type(event.seq)  # int
"""


def test_results_events_and_handles_have_their_types(tmp_path: Path):
    file = tmp_path / "typed.py"
    file.write_text(CODE)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    checker = [str(Path(sys.executable).with_name("pyright")), "--outputjson", "--pythonpath", sys.executable]
    checked = subprocess.run([*checker, "-p", str(tmp_path)], capture_output=True, text=True, check=False)
    report = json.loads(checked.stdout)
    errors = [each["message"] for each in report["generalDiagnostics"] if each["severity"] == "error"]
    assert errors == []
    revealed = {
        each["range"]["start"]["line"]: each["message"].rpartition(" is ")[2].strip('"')
        for each in report["generalDiagnostics"]
        if each["severity"] == "information"
    }
    expected = {
        number: line.rpartition("# ")[2]
        for number, line in enumerate(CODE.splitlines())
        if "reveal_type(" in line
    }
    assert revealed == expected
