import asyncio
import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic_ai.messages import ToolCallPart
from typer.testing import CliRunner

from holdfast import connect
from holdfast.cli import app
from holdfast.errors import ApprovalNeeded, BadInput, SessionExists, TurnFailed
from holdfast.store import open_store
from holdfast.types import Batch, Effect, Run
from tests.client.agents import AGENTS
from tests.runtime.test_tool_results import shop


def test_a_session_that_waits_for_a_decision_is_listed(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/store.db"

    async def ask() -> None:
        async with connect(url, agents=AGENTS) as hf:
            session = await hf.session("payment", agent="payer")
            with pytest.raises(ApprovalNeeded):
                await (await session.send("pay"))

    asyncio.run(ask())
    listed = CliRunner().invoke(app, ["inbox", "--store", url])
    assert "payment" in listed.stdout
    assert "pay, pay" in listed.stdout
    (item,) = json.loads(CliRunner().invoke(app, ["inbox", "--store", url, "--json"]).stdout)["items"]
    assert (item["id"], len(item["approvals"])) == ("payment", 2)


def test_a_call_with_an_unknown_outcome_is_listed_with_the_command_that_settles_it(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/store.db"

    async def cut_off(run_id: str, then: str | None = None) -> None:
        async with open_store(url) as store:
            with suppress(SessionExists):
                await store.create_session(
                    agent="clerk", owner="ada", id="letters", metadata='{"team": "mail"}'
                )
            lease = await store.acquire("letters", holder := await store.join("gone"))
            run = Run(id=run_id, agent="clerk", metadata='{"by": "test"}')
            effect = Effect(run_id=run_id, call_id="call 1", tool="send_letter")
            await store.write(lease, Batch(runs=[run], effects=[effect], status="running"))
            if then is not None:
                await store.write(lease, Batch(runs=[Run(id=then, agent="clerk", status="completed")]))
            await store.leave(holder)

    asyncio.run(cut_off("run-1"))

    def holdfast(*arguments: str, code: int = 0) -> str:
        done = CliRunner(env={"HOLDFAST_STORE": url}).invoke(app, arguments)
        assert done.exit_code == code, done.output
        return done.output

    command = "holdfast settle run-1 'call 1' --result '…' # or --error \"…\""
    assert "send_letter (outcome unknown)" in holdfast("inbox")
    assert command in holdfast("inbox").splitlines()
    assert f"unknown     send_letter: {command}" in holdfast("sessions", "show", "letters").splitlines()
    shown = json.loads(holdfast("sessions", "show", "letters", "--json"))
    assert [effect["call_id"] for effect in shown["effects"]] == ["call 1"]
    assert shown["session"]["metadata"] == {"team": "mail"}
    (run,) = json.loads(holdfast("runs", "list", "letters", "--json"))["runs"]
    assert run["metadata"] == {"by": "test"}
    done = CliRunner().invoke(app, ["settle", "run-1", "call 1", "--result", "sent", "--store", url])
    assert isinstance(done.exception, BadInput)
    assert "--result '\"text\"'" in str(done.exception)
    settled = json.loads(holdfast("settle", "run-1", "call 1", "--result", '"sent"', "--json"))
    assert settled["effect"]["state"] == "completed"
    assert isinstance(settled["effect"]["result"], dict)
    assert json.loads(holdfast("inbox", "--json"))["items"] == []
    asyncio.run(cut_off("run-2", then="run-3"))
    told = "The conversation has continued: the model was already informed that the outcome is unknown."
    assert (
        holdfast("settle", "run-2", "call 1", "--error", "no stamp")
        == f"Call call 1 of send_letter is failed. {told}\n"
    )
    asyncio.run(cut_off("run-4"))
    assert (
        holdfast("settle", "run-4", "call 1", "--result", "1") == "Call call 1 of send_letter is completed.\n"
    )
    assert "waiting for" not in holdfast("sessions", "show", "letters")


def test_a_failed_session_is_listed_until_it_is_dismissed(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/store.db"

    async def fail() -> None:
        async with open_store(url) as store:
            await store.create_session(agent="clerk", owner="ada", id="letters")
            lease = await store.acquire("letters", holder := await store.join("worker"))
            await store.write(lease, Batch(status="failed", error="ValueError: no stamp", release=True))
            await store.leave(holder)

    def holdfast(*arguments: str) -> str:
        done = CliRunner(env={"HOLDFAST_STORE": url}).invoke(app, arguments)
        assert done.exit_code == 0, done.output
        return done.output

    asyncio.run(fail())
    for command in (("inbox",), ("sessions", "list", "--status", "failed"), ("sessions", "show", "letters")):
        assert "ValueError: no" in holdfast(*command)
    assert "`holdfast dismiss` removes it" in holdfast("inbox")
    assert "holdfast retry" not in holdfast("sessions", "show", "letters")  # no message failed
    assert holdfast("dismiss", "letters") == "Session letters is idle.\n"
    assert json.loads(holdfast("inbox", "--json"))["items"] == []
    assert json.loads(holdfast("dismiss", "letters", "--json"))["status"] == "idle"


def test_a_call_that_runs_outside_is_listed_with_the_command_that_delivers_its_result(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/store.db"

    async def order() -> None:
        agent = shop(ToolCallPart("order", {"what": "tea"}, "call 1"))
        async with connect(url, agents=agent) as hf:
            session = await hf.session("tea", agent=agent)
            with pytest.raises(ApprovalNeeded):
                await (await session.send("order"))

    asyncio.run(order())
    command = "holdfast tool-result tea 'call 1' --result '…' # or --error \"…\""
    listed = CliRunner().invoke(app, ["inbox", "--store", url]).stdout
    assert "order (result)" in listed
    assert command in listed.splitlines()
    shown = CliRunner().invoke(app, ["sessions", "show", "tea", "--store", url]).stdout
    assert 'result of   call 1: order {"what": "tea"}' in shown
    assert f"deliver     {command}" in shown.splitlines()


def test_a_failed_session_with_a_message_for_later_is_listed_and_shows_how_to_retry(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/store.db"

    async def fail() -> None:
        async with connect(url, agents=AGENTS) as hf:
            session = await hf.session("broken", agent="broken")
            turn = await session.send("go")
            with pytest.raises(TurnFailed):
                await turn
            await session.send("later", deliver_at=datetime.now(UTC) + timedelta(hours=1))

    asyncio.run(fail())
    assert "broken" in CliRunner().invoke(app, ["inbox", "--store", url]).stdout
    shown = CliRunner().invoke(app, ["sessions", "show", "broken", "--store", url]).stdout
    assert "retry       holdfast retry broken" in shown
    assert "no model today" in next(line for line in shown.splitlines() if line.startswith("last turn"))


async def migrated(url: str) -> None:
    async with connect(url):
        pass


def test_a_message_is_sent_with_a_priority(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/store.db"
    asyncio.run(migrated(url))
    send = ["send", "s", "hello", "--agent", "nobody", "--store", url, "--priority"]
    sent = CliRunner().invoke(app, [*send, "low", "--json"])
    assert '"priority": "low"' in sent.stdout, (sent.stdout, sent.exception)
    refused = CliRunner().invoke(app, [*send, "urgent"])
    assert refused.exit_code != 0
    assert "'urgent' is not a valid value for --priority; use one of low, normal, high" in str(
        refused.exception or refused.output
    )
