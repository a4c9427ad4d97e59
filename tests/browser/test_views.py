"""The views of the page. All tests share one server and one browser; each has a tab of its own."""

import base64
import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.frameworks.framework_store import FrameworkStore
from holdfast.schedules import ScheduleTerms
from holdfast.store import open_store
from holdfast.types import Batch, Effect, Record, Run
from tests.browser.conftest import Site, new_session, say, texts

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
WIDTHS = "[...document.querySelectorAll('.column, .page')].map((one) => one.getBoundingClientRect().width)"
BREAKS = """import("/static/timeline.js").then(({ stretches, scale }) => {
    const { breaks, place } = scale(stretches([{ from: 0, to: 1000 }, { from: 121000, to: 122000 }], []), 800);
    return [breaks.map((one) => one.label), place(121000) - place(1000) < 100];
})"""
"""A pause of two minutes is a narrow break."""
SMALL = """() => [...document.querySelectorAll('button, [role=button], select, textarea, summary, .tabs a, aside > header a, .sessions li a')]
    .filter((one) => one.checkVisibility() && one.getBoundingClientRect().height < 44)
    .map((one) => one.outerHTML)"""


async def test_create_a_session_with_its_first_message(shared: Site):
    page = await shared.open()
    await page.get_by_role("button", name="New", exact=True).click()
    await page.keyboard.type("say hello there")  # the message has the focus
    await page.get_by_label("When no one is watching").select_option("interrupt")
    await page.get_by_label("First message").press("Enter")
    await page.locator("article.answer", has_text="hello there").wait_for()
    await page.locator(".session .status.idle").wait_for()
    assert await texts(page, ".session h2") == ["say hello there✎"]
    assert "say hello there" in await texts(page, ".sessions .title")
    assert await page.locator(".session .badge", has_text="attached").count() == 1
    picture = {"name": "dot.png", "mimeType": "image/png", "buffer": PICTURE}
    await page.get_by_label("Image", exact=True).set_input_files(picture)
    await page.get_by_role("img", name="dot.png").wait_for()
    await say(page, "look at this")
    await page.locator("article.user img.picture").wait_for()
    await page.locator("article.answer", has_text="nothing to do").wait_for()
    await page.get_by_role("button", name="Compact").click()
    await page.locator(".mark", has_text="The history was shortened").wait_for()


async def test_the_inbox_and_an_edit_that_is_refused(shared: Site):
    page = await shared.open()
    await new_session(page, "Tidy up")
    await say(page, "remove the notes")
    card = page.get_by_role("region", name="Approval of remove")
    await card.wait_for()
    row = page.locator(".sessions li", has_text="Tidy up")
    assert await row.locator(".status.waiting").count() == 1  # as soon as the header has it
    await page.get_by_role("link", name=re.compile(r"Inbox \d")).click()
    for refused in ("inbox", "conversation"):
        await card.get_by_role("button", name="Edit…").click()
        await card.get_by_role("textbox").fill('{"path": "all.txt"}')
        await card.get_by_role("button", name="Approve as edited").click()
        await card.get_by_role("alert").get_by_text("rejected").wait_for()
        assert "all.txt" in await card.get_by_role("textbox").input_value()
        await card.get_by_role("button", name="Back").click()
        if refused == "inbox":
            await page.get_by_role("link", name="Tidy up").first.click()
            await page.get_by_role("log").wait_for()
    await card.get_by_role("button", name="Approve", exact=True).click()
    await page.locator("article.answer", has_text="ended after 1: removed notes.txt").wait_for()
    (when,) = await texts(page, "details.tool .tool-time >> text=approved by")
    assert when.startswith("approved by local, ")
    await page.get_by_label("Filter by status").select_option("cleaned")
    await page.get_by_text("No session matches.").wait_for()
    await page.get_by_label("Filter by status").select_option("idle")
    await row.wait_for()


async def test_delegates_and_a_message_that_failed(shared: Site):
    async with open_store(shared.store) as store:
        holder = await store.join("a writer")
        ids: list[str] = []
        for title, parent in (("Parent", None), ("Delegate", "run-of-Parent")):
            session = await store.create_session(agent="agent", owner="local", title=title)
            lease = await store.acquire(session.id, holder)
            await store.write(
                lease, Batch(runs=[Run(id=f"run of {title}".replace(" ", "-"), parent_id=parent)])
            )
            await store.release(lease)
            ids.append(session.id)
        await store.submit(ids[0], "message", json.dumps({"text": "lost words", "content": []}))
        await store.leave(holder)
    page = await shared.open(f"/#/s/{ids[0]}")
    await page.locator(".mark.bad", has_text="The message failed").wait_for()
    await page.locator("article.user.failed", has_text="lost words").wait_for()
    below = page.locator(".sessions li", has_text="Parent").get_by_role("list", name="Delegates")
    await below.get_by_text("Delegate").click()
    await page.get_by_role("link", name="delegated by another session").wait_for()


async def test_timeline_tool_calls_and_workers(shared: Site, tmp_path: Path):
    page = await shared.open()
    address = await new_session(page, "")
    await say(page, f"work 2 {tmp_path / 'mark'}")
    await page.get_by_text("ended after 2").wait_for()
    await page.locator(".sessions .title", has_text="work 2").wait_for()  # its title is its first message
    widths = await page.evaluate(WIDTHS)
    await page.get_by_role("link", name="Timeline", exact=True).click()
    await page.locator(".axis text").first.wait_for()
    assert re.match(r"\d+:\d\d:\d\d", await page.locator(".axis text").first.text_content())
    assert await page.evaluate(BREAKS) == [["2 min"], True]
    assert "pause (shortened)" in (await texts(page, ".legend"))[0]
    widths += await page.evaluate(WIDTHS)
    await page.get_by_role("link", name="Tool calls", exact=True).click()
    await page.locator(".effects summary").first.click()
    await page.locator(".effects").get_by_text('"number": 0').wait_for()
    assert await texts(page, ".effects .badge") == ["done", "done"]
    widths += await page.evaluate(WIDTHS)
    await page.get_by_role("link", name="Show in the conversation").first.click()
    await page.locator("details.tool.chosen[open]", has_text='"number": 0').wait_for()
    assert page.url.startswith(f"{address}/call/")
    await page.get_by_role("link", name="Workers", exact=True).click()
    await page.locator("td", has_text="alive").first.wait_for()
    widths += await page.evaluate(WIDTHS)
    assert len(set(widths)) == 1
    assert (await texts(page, "th")) == ["worker", "agents", "running", "uptime", "state"]
    assert "agent idle" in (await texts(page, "tbody tr"))[0]


async def test_schedules_are_listed_run_and_paused(shared: Site):
    async with open_store(shared.store) as store:
        terms = ScheduleTerms(cron="0 9 * * MON-FRI", timezone="Europe/Berlin", text="say good morning")
        schedule = await store.create_schedule(
            terms, owner="local", agent="agent", actor="local", id="morning"
        )
    page = await shared.open()
    await page.get_by_role("link", name="Schedules", exact=True).click()
    row = page.locator("tr", has_text="say good morning")
    await row.get_by_text("0 9 * * MON-FRI").wait_for()
    assert schedule.next_at is not None
    shown = await row.locator("td[data-label=next] time").get_attribute("datetime")
    assert shown is not None
    assert datetime.fromisoformat(shown) == schedule.next_at
    await row.get_by_role("button", name="Run say good morning now").click()
    await row.locator(".badge.done").wait_for()
    await row.get_by_role("button", name="Pause say good morning").click()
    await row.get_by_text("paused").wait_for()
    await row.get_by_role("button", name="Resume say good morning").click()
    await row.locator("td[data-label=next] time").wait_for()
    await row.get_by_role("link", name="Open session").click()
    await page.locator("article.answer", has_text="good morning").wait_for()
    await page.locator(".mark", has_text="A schedule sent this message.").wait_for()
    await page.get_by_role("link", name="started by a schedule").click()
    await row.wait_for()


async def test_usage_is_shown_by_day_agent_and_session(shared: Site):
    page = await shared.open()
    await new_session(page, "Counted")
    await say(page, "say one")
    await page.locator("article.answer", has_text="one").wait_for()
    await page.locator(".session .status.idle").wait_for()
    session_id = page.url.rpartition("/")[2]
    await page.get_by_role("link", name="Usage", exact=True).click()
    today = page.locator("tbody tr")
    await today.first.wait_for()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", (await today.first.locator("td").first.inner_text()))
    assert await today.first.locator("rect").get_attribute("width") == "100"
    await page.get_by_role("link", name="Agent", exact=True).click()
    await page.locator("tr", has_text="agent").first.wait_for()
    await page.get_by_role("link", name="Session", exact=True).click()
    await page.reload()
    row = page.locator("tr", has=page.locator(f"a[href='#/s/{session_id}']"))
    assert await row.locator("td[data-label=requests]").inner_text() == "1"
    assert int((await row.locator("td[data-label=input]").inner_text()).replace(",", "")) > 0
    await page.get_by_label("Period").select_option("7")
    await row.wait_for()
    await row.get_by_role("link").click()
    await page.locator("article.answer", has_text="one").wait_for()


async def test_a_session_waits_for_a_budget_until_an_administrator_raises_it(shared: Site):
    page = await shared.open()
    await new_session(page, "Dear")
    session_id = page.url.rpartition("/")[2]
    budgets = await shared.open()
    await budgets.get_by_role("link", name="Usage", exact=True).click()
    await budgets.get_by_role("link", name="Budgets").click()
    form = budgets.get_by_role("form", name="Set a budget")
    await form.locator("select").select_option("session")
    await form.get_by_label("Name").fill(session_id)
    await form.get_by_role("button", name="Set").click()
    await form.get_by_role("alert").get_by_text("at least one limit").wait_for()
    await form.get_by_label("Requests").fill("0")
    await form.get_by_role("button", name="Set").click()
    row = budgets.locator("tr", has_text=session_id)
    await row.get_by_text("used up").wait_for()
    await say(page, "say dear words")
    await page.locator(".session .status.sleeping").wait_for()
    await page.get_by_text("the budget of the session: 0 requests of 0 requests").first.wait_for()
    await form.locator("select").select_option("session")
    await form.get_by_label("Name").fill(session_id)
    await form.get_by_label("Requests").fill("10")
    await form.get_by_role("button", name="Set").click()
    await form.get_by_role("status").get_by_text("One session that waited checks it again").wait_for()
    await page.locator("article.answer", has_text="dear words").wait_for()
    await row.get_by_text("1 of 10").wait_for()
    await row.get_by_role("button", name="Remove").click()
    await row.wait_for(state="detached")


async def test_clean_without_an_archive_asks_first(shared: Site):
    page = await shared.open()
    await new_session(page, "Short-lived")
    await say(page, "say keep this")
    await page.locator("article.answer", has_text="keep this").wait_for()
    await page.locator(".session .status.idle").wait_for()
    await page.get_by_role("link", name="Retention").click()
    clean = page.get_by_role("button", name="Clean now")
    await clean.click()
    refused = page.get_by_role("alert")
    await refused.get_by_text("second").wait_for()
    assert "Not cleaned: it was active" in await refused.inner_text()
    assert "--" not in await refused.inner_text()
    await page.get_by_label("Only if idle for").fill("0")
    await page.get_by_label("Keep an archive").uncheck()
    await clean.click()
    asks = page.get_by_role("dialog", name="Delete permanently")
    await asks.get_by_text("There is no archive of this session on the server").wait_for()
    await asks.get_by_role("button", name="Cancel").click()
    assert await page.locator(".session .status.idle").count() == 1
    await clean.click()
    await asks.get_by_role("button", name="Archive and clean").click()
    await page.locator(".session .status.cleaned").wait_for()
    await page.get_by_role("region", name="Audit").get_by_text("kept an archive").wait_for()
    await page.get_by_role("link", name="Conversation").click()
    cleaned = page.get_by_role("region", name="Cleaned")
    await cleaned.get_by_role("button", name="Restore").click()
    await page.locator("article.answer", has_text="keep this").wait_for()


async def test_touch_targets_are_large_enough(shared: Site):
    phone: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    page = await shared.open(**phone)
    await new_session(page, "By hand")
    await say(page, "remove it")
    await page.get_by_role("region", name="Approval of remove").wait_for()
    for view in ("Conversation", "Timeline", "Tool calls", "Retention"):
        await page.get_by_role("link", name=view).click()
        await page.locator(
            {"Timeline": "rect.span", "Tool calls": ".effects li"}.get(view, "h3")
        ).first.wait_for()
        assert await page.evaluate(SMALL) == []
    await page.get_by_role("link", name="All sessions").click()
    await page.locator(".sessions .title").first.wait_for()
    assert await page.evaluate(SMALL) == []


async def test_the_inbox_shows_unknown_outcomes_and_messages_without_a_worker(shared: Site):
    async with open_store(shared.store) as store:
        await store.submit(
            (await store.create_session(agent="absent", owner="local")).id,
            "message",
            '{"text": "Anyone there?"}',
        )
        session = await store.create_session(agent="agent", owner="local", title="Pay the bill")
        holder = await store.join("filler", ttl=60)
        lease = await store.acquire(session.id, holder)
        pay = Effect(run_id="run-that-pays", call_id="call-1", tool="pay")
        await store.write(lease, Batch(runs=[Run(id="run-that-pays", status="failed")], effects=[pay]))
        await store.release(lease)
        await store.leave(holder)
    page = await shared.open()
    await page.get_by_role("link", name="Inbox").click()
    await page.get_by_role("article", name="Anyone there?").get_by_text("No live worker serves").wait_for()
    card = page.get_by_role("region", name="Outcome of pay")
    await card.wait_for()
    await card.get_by_role("textbox", name="Result").fill("paid")
    await card.get_by_role("button", name="Settle").click()
    await card.wait_for(state="detached")


async def test_the_conversation_of_another_framework(shared: Site, tmp_path: Path):
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "Deploy it."},
        {"type": "function_call_output", "call_id": "1", "output": "deployed"},
        {"role": "assistant", "content": "**Done.**"},
        {"type": "reasoning", "encrypted_content": "x"},
    ]
    async with open_store(shared.store) as store:
        adapter = FrameworkStore.on_this_loop(store, framework="openai-agents", owner="local")
        session_id = await adapter.ensure_id("a foreign talk")

        async def add(*bodies: dict[str, Any], first: int = 0) -> None:
            async with adapter.writing(session_id) as writer:
                keys = (f"{number:012}" for number in range(first, first + len(bodies)))
                await writer.write(
                    [
                        Record(kind="item", key=key, body=json.dumps(body))
                        for key, body in zip(keys, bodies, strict=True)
                    ]
                )

        await add(*items)
        page = await shared.open()
        await page.locator(".sessions li", has_text="a foreign talk").click()
        await page.locator("article.answer strong", has_text="Done.").wait_for()
        assert await texts(page, "article.user") == ["Deploy it."]
        assert await texts(page, "details.tool .tool-name") == ["tool", "other"]
        await page.get_by_text("Stored by openai-agents: 4 messages.").wait_for()
        assert await page.get_by_placeholder("Write a message").count() == 0  # no worker continues it
        await page.screenshot(path=tmp_path / "foreign.png")
        await add({"role": "user", "content": "Again."}, first=len(items))
        await page.locator("article.user", has_text="Again.").wait_for()
