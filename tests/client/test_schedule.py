"""The handle on a schedule, in process and through a server."""

from typing import Any, cast

import pytest

from holdfast import Client
from holdfast.errors import BadInput, Conflict, NotFound


async def test_values_that_are_not_json_are_refused(hf: Client):
    with pytest.raises(BadInput, match="pass the name of the agent, not a object"):
        await hf.create_schedule("0 9 * * *", "hello", agent=cast("Any", object()))
    session = await hf.session("s", agent="echo")
    for data in (object(), float("nan")):
        with pytest.raises(BadInput, match="not JSON"):
            await session.signal("paid", data)
    with pytest.raises(BadInput, match="deliver_at must be a datetime with a time zone"):
        await session.send("later", deliver_at=cast("Any", "2036-01-01T00:00:00Z"))
    with pytest.raises(BadInput, match=r"priority.*'low', 'normal' or 'high'"):
        await session.send("now", priority=cast("Any", "urgent"))


async def test_a_message_has_a_priority(hf: Client):
    session = await hf.session("urgent", agent="nobody")
    assert (await session.send("now", priority="high")).accepted.priority == "high"
    await session.send("whenever")
    assert [each.priority async for each in session.submissions()] == ["high", "normal"]


async def test_a_schedule_runs_its_agent(hf: Client):
    schedule = await hf.create_schedule(
        "0 9 * * MON-FRI", "hello", agent="echo", timezone="Europe/Berlin", overlap="queue", id="daily"
    )
    assert repr(schedule) == "ScheduleHandle(id='daily')"
    turn = await schedule.run()
    assert "hello" in await turn.result()
    info = await schedule.info()
    assert (info.last_state, info.last_session_id) == ("done", turn.session_id)
    assert len(await schedule.times()) == 10
    assert (await schedule.times(3))[0] == info.next_at
    assert (await schedule.change(cron="*/5 * * * *", title="Often")).cron == "*/5 * * * *"
    assert (await schedule.pause()).next_at is None
    assert (await schedule.resume()).next_at is not None
    assert [each.id async for each in hf.schedules()] == ["daily"]
    await schedule.delete()
    with pytest.raises(NotFound):
        await hf.schedule("daily").info()


async def test_a_schedule_of_a_session(hf: Client):
    session = await hf.session("letters", agent="echo")
    schedule = await hf.create_schedule("0 9 * * *", "hello", session_id=session.id)
    turn = await schedule.run()
    assert turn.session_id == "letters"
    await turn
    with pytest.raises(Conflict, match="is not available"):
        await hf.create_schedule("0 9 * * *", "hello", agent="echo", id=schedule.id)
