import asyncio

import pytest

from holdfast import Client, TurnHandle
from holdfast.errors import ApprovalNeeded, BadInput, Conflict, TurnFailed
from holdfast.events import RunCompleted, SubmissionDone, SubmissionFailed
from tests.client.agents import Invoice, clerk, large


async def test_the_result_has_the_output_type_of_the_agent(hf: Client):
    session = await hf.session(agent=clerk)
    assert await (await session.send("invoice")) == Invoice(customer="Ada", total=12)
    named = await hf.session(agent="clerk", output_type=Invoice)
    assert await (await named.send("invoice")) == Invoice(customer="Ada", total=12)


async def test_without_a_type_an_output_is_json(hf: Client):
    session = await hf.session(agent="clerk")
    assert await (await session.send("invoice")) == '{"customer": "Ada", "total": 12}'


async def test_an_output_of_another_type_is_an_error(hf: Client):
    session = await hf.session(agent="clerk", output_type=int)
    with pytest.raises(BadInput, match="is not of type"):
        await (await session.send("invoice"))


async def test_a_large_output_arrives_whole(hf: Client):
    session = await hf.session(agent=large)
    turn = await session.send("invoice")
    assert (await turn).customer == "A" * 200_000
    (completed,) = [e async for e in session.events(follow=False) if isinstance(e, RunCompleted)]
    assert completed.output["total"] == 1


async def test_text_is_not_recorded_twice(hf: Client):
    session = await hf.session(agent="echo")
    await (await session.send("hello"))
    (completed,) = [e async for e in session.events(follow=False) if isinstance(e, RunCompleted)]
    assert completed.output is None


async def test_a_turn_that_waits_for_a_person_raises_until_it_is_decided(hf: Client):
    session = await hf.session(agent="payer")
    turn = await session.send("pay")
    with pytest.raises(ApprovalNeeded, match="pay, pay") as waiting:
        await turn.result(timeout=30)
    assert [call.call_id for call in waiting.value.calls] == ["first", "second"]
    assert [item.id for item in (await hf.inbox()).items] == [session.id]
    await session.approve("first")
    with pytest.raises(ApprovalNeeded, match=r"decision about pay\."):
        await turn.result(timeout=30)
    (second,) = (await session.info()).approvals
    with pytest.raises(TurnFailed, match="cannot be edited"):
        await (await session.approve(second, arguments={"amount": 8}))
    await session.approve(second)
    assert await turn.result(timeout=30) == "answered paid 5"


async def test_a_denied_call_reaches_the_model(hf: Client):
    session = await hf.session(agent="payer")
    turn = await session.send("pay")
    with pytest.raises(ApprovalNeeded):
        await turn.result(timeout=30)
    await session.deny("first", feedback="too much")
    await session.deny("second")
    assert await turn.result(timeout=30) == "answered too much"
    with pytest.raises(Conflict, match="does not wait for a decision"):
        await session.approve("first")


async def test_a_running_turn_is_cancelled(hf: Client):
    session = await hf.session(agent="sleeper")
    turn = await session.send("sleep")
    await _started(turn)
    await turn.cancel()
    with pytest.raises(TurnFailed, match="interrupted") as failed:
        await turn.result(timeout=30)
    assert failed.value.facts["state"] == "failed"
    assert (await turn.info()).state == "failed"


async def test_a_queued_turn_is_cancelled_and_the_running_one_continues(hf: Client):
    session = await hf.session(agent="sleeper")
    running, queued = await session.send("sleep"), await session.send("never")
    await _started(running)
    await queued.cancel()
    with pytest.raises(TurnFailed, match="interrupted"):
        await queued.result(timeout=30)
    assert (await running.info()).state == "claimed"
    await running.cancel()
    with pytest.raises(TurnFailed):
        await running.result(timeout=30)


async def test_a_waiting_turn_is_cancelled(hf: Client):
    session = await hf.session(agent="payer")
    turn = await session.send("pay")
    with pytest.raises(ApprovalNeeded):
        await turn.result(timeout=30)
    await turn.cancel()
    with pytest.raises(TurnFailed, match="interrupted"):
        await turn.result(timeout=30)


async def test_cancelling_a_turn_that_has_ended_changes_nothing(hf: Client):
    session = await hf.session(agent="echo")
    first = await session.send("one")
    assert await first == "1: one"
    await first.cancel()
    assert await (await session.send("two")) == "2: two"
    assert await first == "1: one"


async def test_a_turn_is_followed_to_its_end(hf: Client):
    session = await hf.session(agent="echo")
    turn = await session.send("one")
    events = [event async for event in turn.events()]
    assert isinstance(events[-1], SubmissionDone)
    reopened = await session.turn(turn.id)
    assert await reopened == "1: one"


async def test_a_result_that_takes_too_long_is_a_timeout_and_the_turn_continues(hf: Client):
    session = await hf.session(agent="sleeper")
    turn = await session.send("sleep")
    with pytest.raises(TimeoutError):
        await turn.result(timeout=0.2)
    assert (await turn.info()).ended_at is None
    await turn.cancel()
    assert isinstance([event async for event in turn.events()][-1], SubmissionFailed)


async def test_a_missing_worker_is_reported(hf: Client, caplog: pytest.LogCaptureFixture):
    session = await hf.session(agent="nobody serves this")
    turn = await session.send("hello")
    with pytest.raises(TimeoutError):
        await turn.result(timeout=3)
    assert "worker" in caplog.text


async def _started(turn: TurnHandle[str]) -> None:
    async with asyncio.timeout(30):
        async for event in turn.events():
            if event.kind == "tool_call_started":
                return
