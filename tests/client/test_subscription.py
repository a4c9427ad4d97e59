"""The handle on a subscription, in process and through a server: a worker sends its notices to a receiver on loopback."""

import json
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest
from standardwebhooks import Webhook

from holdfast import Client
from holdfast.errors import BadInput, Conflict, NotFound
from holdfast.notices.signature import new_secret
from tests.builders import until
from tests.notices.receiver import Receiver

URL = "https://example.com/hook"


@pytest.fixture
async def receiver(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Receiver, None]:
    monkeypatch.setenv("HOLDFAST_WEBHOOK_NETWORKS", "127.0.0.0/8")
    async with Receiver().listening() as receiver:
        yield receiver


async def test_a_subscription_is_created_changed_and_deleted(hf: Client):
    created = await hf.create_subscription(URL, ["waiting", "failed"], agents=["echo"], content=True)
    subscription = hf.subscription(created.id)
    assert repr(subscription) == f"SubscriptionHandle(id={created.id!r})"
    assert created.secret.startswith("whsec_")
    info = await subscription.info()
    assert (info.url, info.kinds, info.agents, info.sessions) == (URL, ["waiting", "failed"], ["echo"], [])
    assert (info.content, info.everyone, info.paused, info.problem) == (True, False, False, None)
    changed = await subscription.change(kinds=["done"], agents=[], sessions=["s"], content=False)
    assert (changed.kinds, changed.agents, changed.sessions) == (["done"], [], ["s"])
    assert (changed.url, changed.content) == (URL, False)
    assert (await subscription.pause()).paused
    with pytest.raises(Conflict, match="is paused; resume it first"):
        await subscription.test()
    assert not (await subscription.resume()).paused
    assert (await subscription.rotate_secret()).secret != created.secret
    chosen = new_secret()
    assert (await subscription.rotate_secret(chosen)).secret == chosen
    assert [each.id async for each in hf.subscriptions()] == [created.id]
    assert [each async for each in hf.subscriptions(owner="nobody")] == []
    await subscription.delete()
    with pytest.raises(NotFound):
        await subscription.info()


async def test_bad_values_are_refused(hf: Client):
    for url, problem in (("http://example.com", "Use https"), ("https://127.0.0.1", "is not public")):
        with pytest.raises(BadInput, match=problem):
            await hf.create_subscription(url, ["waiting"])
    with pytest.raises(BadInput, match="kinds"):
        await hf.create_subscription(URL, [cast("Any", "finished")])
    with pytest.raises(BadInput, match="a webhook secret is"):
        await hf.create_subscription(URL, ["waiting"], secret="hunter2")
    with pytest.raises(BadInput, match="requires everyone"):
        await hf.create_subscription(URL, ["worker_lost"])
    created = await hf.create_subscription(URL, ["worker_lost"], everyone=True, owner="ops")
    assert (created.everyone, created.owner) == (True, "ops")


async def test_the_end_of_a_turn_is_sent_and_can_be_sent_again(receiver: Receiver, hf: Client):
    created = await hf.create_subscription(receiver.url(), ["done"], content=True)
    subscription = hf.subscription(created.id)
    session = await hf.session("talk", agent="echo")
    turn = await session.send("hello")
    await turn

    async def arrived() -> bool:
        return [each.session_id async for each in subscription.deliveries(state="delivered")] == ["talk"]

    await until(arrived)
    _, headers, body = receiver.requests[0]
    Webhook(created.secret).verify(body, headers)
    notice = json.loads(body)
    assert (notice["type"], notice["data"]["submission_id"]) == ("session.done", turn.id)
    assert "hello" in notice["data"]["output"]
    (delivery,) = [each async for each in subscription.deliveries()]
    assert (delivery.id, delivery.attempts, delivery.result) == (headers["webhook-id"], 1, "status 204")
    assert (await subscription.repeat(delivery.id)).state == "pending"

    async def repeated() -> bool:
        return len(receiver.requests) == 2

    await until(repeated)
    assert receiver.requests[1][1]["webhook-id"] == delivery.id
    await until(arrived)
    test = await subscription.test()
    assert test.kind == "test"
