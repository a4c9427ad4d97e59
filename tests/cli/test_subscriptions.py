"""`holdfast subscription`: from its creation to its deletion, on a store and through a server."""

import re
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from holdfast import Turn, agent, open_store
from holdfast.config import load_settings
from holdfast.server import create_app
from holdfast.server.auth import digest
from holdfast.types import Batch, NewEvent
from tests.builders import until
from tests.cli.test_url import Shell
from tests.notices.receiver import Receiver
from tests.runtime.agents import working
from tests.server.serving import serving


@pytest.mark.timeout(120)
@pytest.mark.parametrize("over_a_server", [False, True])
async def test_a_subscription_from_its_creation_to_its_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over_a_server: bool
):
    @agent("bot")
    async def bot(turn: Turn) -> str:
        return turn.text

    monkeypatch.setenv("HOLDFAST_WEBHOOK_NETWORKS", "127.0.0.0/8")
    path = f"sqlite:///{tmp_path}/s.db"
    async with Receiver().listening() as receiver, open_store(path) as store:
        await store.add_token(digest("hf_boss"), owner="local", scopes=["admin"])
        async with serving(create_app(load_settings(), store, ["bot"])) as url, working(store, bot):
            server = {"HOLDFAST_URL": url, "HOLDFAST_TOKEN": "hf_boss"}
            shell = Shell((server if over_a_server else {"HOLDFAST_STORE": path}) | {"COLUMNS": "200"})
            await use(shell, receiver)


async def use(shell: Shell, receiver: Receiver) -> None:
    assert await shell.text("subscription", "list") == "There are no subscriptions.\n"
    created = await shell.text("subscription", "create", receiver.url(), "--kind", "done", "--content")
    facts = dict(re.split(r" +", line, maxsplit=1) for line in created.splitlines())
    assert (facts["kinds"], facts["state"], facts["content"]) == ("done", "active", "yes")
    assert (facts["agents"], facts["sessions"], facts["owner"]) == ("all", "all", "local")
    assert created.endswith("Save the secret: it is not shown again.\n")
    given = facts["subscription"]

    async def deliveries(*options: str) -> list[dict[str, Any]]:
        found = await shell.json("subscription", "deliveries", given, *options)
        return found["deliveries"]

    async def arrived() -> bool:
        return len(await deliveries("--state", "delivered")) == 1

    assert await shell.text("subscription", "deliveries", given) == "There are no deliveries.\n"
    assert await shell.text("send", "s", "hello", "--agent", "bot", "--wait") == "hello\n"
    await until(arrived)
    _, headers, body = receiver.requests[0]
    assert Webhook(facts["secret"]).verify(body, headers)["data"]["output"] == "hello"
    (delivery,) = await deliveries()
    assert re.search(
        rf"{delivery['id']} .* done +s +delivered +1 +- +status 204",
        await shell.text("subscription", "deliveries", given, "--limit", "1"),
    )
    assert (
        await shell.text("subscription", "repeat", given, delivery["id"])
        == f"delivery {delivery['id']} is sent again now\n"
    )
    await until(arrived)
    test = await shell.text("subscription", "test", given)
    assert re.fullmatch(r"delivery \S+ is pending\n", test)
    changed = await shell.text("subscription", "change", given, "--agent", "bot", "--no-content")
    assert re.search(r"agents +bot\n", changed)
    assert "secret" not in changed
    rotation = await shell.text("subscription", "rotate", given)
    assert rotation.endswith("it is not shown again. The previous secret works for another day.\n")
    rotated = await shell.json("subscription", "rotate", given)
    assert rotated["subscription"]["secret"] != facts["secret"]
    assert "paused" in await shell.text("subscription", "pause", given)
    refused = await shell.holdfast("subscription", "test", given)
    assert "is paused; resume it first" in str(refused.exception)
    assert re.search(r"paused +local", await shell.text("subscription", "list"))
    assert "active" in await shell.text("subscription", "resume", given)
    assert "secret" not in await shell.text("subscription", "show", given)
    assert await shell.text("subscription", "delete", given) == f"Subscription {given} is deleted.\n"
    assert await shell.json("subscription", "list") == {"subscriptions": []}


async def test_pending_deliveries_have_the_time_of_their_next_attempt(tmp_path: Path):
    path = f"sqlite:///{tmp_path}/s.db"
    shell = Shell({"HOLDFAST_STORE": path, "COLUMNS": "200"})
    async with open_store(path) as store:
        created = await shell.json("subscription", "create", "https://example.com/hook", "--kind", "waiting")
        given = created["subscription"]["id"]
        await store.create_session(agent="bot", id="s", owner="local")
        lease = await store.acquire("s", await store.join("worker", ttl=60))
        event = NewEvent(kind="approval_requested", payload='{"calls": []}')
        await store.write(lease, Batch(events=[event, event]))
        await store.match_notices()
    found = (await shell.json("subscription", "deliveries", given))["deliveries"]
    (due,) = (each["due_at"] for each in found if each["due_at"])
    text = await shell.text("subscription", "deliveries", given)
    assert re.search(r"attempts +next attempt +result", text)
    assert re.search(rf"pending +0 +{due[:10]} {due[11:19]}Z +-", text)
    assert re.search(r"pending +0 +after the previous one +-", text)
    await shell.text("subscription", "pause", given)
    assert (await shell.text("subscription", "deliveries", given)).count("after the pause") == 2
