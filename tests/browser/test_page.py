"""What a person sees: real browser, real server, real worker."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.server.auth import digest
from holdfast.store import open_store
from holdfast.types import Batch, Checkpoint, Message, NewEvent, Segment
from tests.browser.conftest import TOKEN, Page, Site, new_session, say, texts
from tests.promises.workers import lines

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]


async def test_say_something_and_come_back_to_it(shared: Site):
    page = await shared.open()
    assert page.url == f"{shared.url}/"
    address = await new_session(page, "First")
    assert TOKEN not in address
    await say(page, "say **bold** words and `code`")
    await page.locator("article.answer strong", has_text="bold").wait_for()
    await page.locator(".session .status.idle").wait_for()
    assert await texts(page, "article.user") == ["say **bold** words and `code`"]
    assert await texts(page, "article.answer") == ["bold words and code"]
    await page.reload()
    await page.locator("article.answer code", has_text="code").wait_for()
    assert await texts(page, "article.user") == ["say **bold** words and `code`"]
    assert await texts(page, "article.answer") == ["bold words and code"]
    await page.locator(".sessions .title", has_text="First").wait_for()


async def test_close_the_tab_in_mid_turn(site: Site, tmp_path: Path):
    site.hold = 1
    await site.start()
    page = await site.open()
    address = await new_session(page)
    await say(page, f"work 4 {tmp_path / 'mark'}")
    await page.locator(".badge.running").wait_for()
    await page.close()
    await lines(tmp_path / "mark", 3)
    page = await site.open(address.removeprefix(site.url))
    await page.get_by_text("ended after 4: did 3").wait_for()
    assert len(await texts(page, "details.tool")) == 4
    assert await lines(tmp_path / "mark", 4) == ["0", "1", "2", "3"]


async def test_kill_everything_in_mid_turn_and_start_it_again(site: Site, tmp_path: Path):
    """The page stays open: it says that it reconnects, then shows the turn's end, nothing twice and nothing done twice."""
    site.hold = 1
    await site.start()
    page = await site.open()
    await new_session(page)
    await say(page, f"work 4 {tmp_path / 'mark'}")
    await lines(tmp_path / "mark", 2)
    await site.kill()
    await page.get_by_text("Reconnecting…").wait_for()
    await site.start()
    await page.get_by_text("Reconnecting…").wait_for(state="hidden")
    await page.get_by_text("ended after 4: did 3").wait_for()
    await page.locator(".mark.good", has_text="Recovered").wait_for()
    assert len(await texts(page, "article.user")) == 1
    states = await texts(page, "details.tool .badge")
    assert states == ["done", "unknown", "done", "done"]
    assert await lines(tmp_path / "mark", 4) == ["0", "1", "2", "3"]
    before = await texts(page, "article")
    await page.reload()
    await page.get_by_text("ended after 4: did 3").wait_for()
    assert await texts(page, "article") == before
    # A call of unknown outcome is the first of the tool calls, and a person can settle it.
    await page.get_by_role("link", name="Tool calls").click()
    await page.locator(".effects .badge.unknown").wait_for()
    assert (await texts(page, ".effects li .badge")) == ["unknown", "done", "done", "done"]
    await page.get_by_role("textbox", name="Result").fill("it was done")
    await page.get_by_role("button", name="Settle").click()
    await page.locator(".effects .badge.unknown").wait_for(state="hidden")
    await page.get_by_role("link", name="Timeline").click()
    await page.locator(".sign.recovered").wait_for()


async def test_the_effects_of_a_failed_turn_are_undone(shared: Site):
    page = await shared.open()
    await new_session(page)
    await say(page, "book")
    undo = page.get_by_role("button", name="Undo effects")
    await undo.click()
    await page.locator(".mark", has_text="The effects of the turn were undone.").wait_for()
    await page.locator("details.tool > summary").click()
    assert await texts(page, ".steps li .badge") == ["undone"]
    assert await undo.count() == 0
    await page.reload()
    await page.locator(".mark", has_text="The effects of the turn were undone.").wait_for()
    assert await undo.count() == 0
    await page.get_by_role("link", name="Tool calls").click()
    await page.locator(".effects .badge.undone").wait_for()


async def test_approve_deny_and_edit(shared: Site):
    page = await shared.open()
    await new_session(page)
    await say(page, "deploy once")
    card = page.get_by_role("region", name="Approval of deploy")
    await page.locator(".sessions .status.waiting").wait_for()
    await card.get_by_role("button", name="Approve").click()
    await page.locator("article.answer .markdown", has_text="on staging").wait_for()
    await card.wait_for(state="hidden")
    await say(page, "deploy twice")
    await card.get_by_role("button", name="Deny…").click()
    await card.get_by_role("textbox").fill("not on a Friday")
    await card.get_by_role("button", name="Deny", exact=True).click()
    await page.get_by_text("ended after 1: not on a Friday").wait_for()
    await say(page, "deploy again")
    await card.get_by_role("button", name="Edit…").click()
    await card.get_by_role("textbox").fill("{")
    await card.get_by_role("button", name="Approve as edited").click()
    await card.get_by_text("not JSON").wait_for()
    await card.get_by_role("textbox").fill('{"target": "production"}')
    await card.get_by_role("button", name="Approve as edited").click()
    await page.locator("article.answer .markdown", has_text="on production").wait_for()
    assert (await texts(page, "details.tool > summary .badge")) == ["done", "denied", "done"]
    # The tool's result is HTML: it is text here, and nothing of it has run.
    assert await page.locator("article img").count() == 0
    assert await page.evaluate("window.hurt") is None


async def test_a_session_that_sleeps_says_until_when_and_wakes(shared: Site):
    page = await shared.open()
    await new_session(page)
    await say(page, "nap 4")
    await page.locator(".sessions .status.sleeping").wait_for()
    facts = page.locator(".session .facts .sleeps")
    await facts.wait_for()
    assert "timer until" in await facts.inner_text()
    assert await page.get_by_role("link", name="Inbox", exact=True).count() == 1, "nobody needs to decide"
    await page.get_by_role("combobox", name="Filter by status").select_option("sleeping")
    await page.locator(".sessions .status.sleeping").wait_for()
    await page.get_by_text("ended after 1: rested").wait_for()
    await page.locator(".sessions", has_text="No session matches.").wait_for()


async def test_stop_steer_and_queue(site: Site, tmp_path: Path):
    site.hold = 0.5
    await site.start()
    page = await site.open()
    await new_session(page)
    await say(page, "talk")
    await page.get_by_text("word-5 ").wait_for()
    await page.get_by_role("button", name="Stop").click()
    await page.locator(".mark", has_text="Interrupted").wait_for()
    await page.locator(".session .status.idle").wait_for()
    await page.get_by_role("button", name="Retry").click()
    await page.get_by_text("word-5 ").wait_for()
    await page.get_by_role("button", name="Stop").click()
    await page.locator(".mark", has_text="Interrupted").nth(1).wait_for()
    await page.locator(".session .status.idle").wait_for()
    await say(page, f"work 6 {tmp_path / 'mark'}")
    await lines(tmp_path / "mark", 1)
    assert await page.get_by_role("button", name="Retry").count() == 0
    await say(page, "say queued words")
    await page.locator("article.queued", has_text="say queued words").wait_for()
    await page.get_by_text("Steer", exact=True).click()
    await say(page, "say steered words")
    await page.locator("article.answer", has_text="steered words").wait_for()
    await page.locator("article.answer", has_text="queued words").wait_for()
    await page.locator("article.queued").wait_for(state="detached")
    # The history was replaced in between, and told again: nothing of it is there twice.
    said = ["talk", f"work 6 {tmp_path / 'mark'}", "say steered words", "say queued words"]
    assert await texts(page, "article.user") == said
    done = await lines(tmp_path / "mark", 1)
    assert len(done) < 6  # it was steered away from the rest
    await page.locator(".session .status.idle").wait_for()
    await page.get_by_role("button", name="Undo").click()
    await page.locator("article.undone", has_text="say queued words").wait_for()


async def test_interrupt_with_a_message_and_go_on_in_the_background(site: Site, tmp_path: Path):
    site.hold = 0.5
    await site.start()
    page = await site.open()
    address = await new_session(page)
    await say(page, "talk")
    await page.get_by_text("word-5 ").wait_for()
    await page.get_by_text("Interrupt", exact=True).click()
    await say(page, f"work 8 {tmp_path / 'mark'}")
    await page.locator(".mark", has_text="Interrupted").wait_for()
    await lines(tmp_path / "mark", 1)
    await page.get_by_role("button", name="Background").click()
    await page.get_by_text("Running in the background. You can close this tab.").wait_for()
    await page.context.close()
    await lines(tmp_path / "mark", 8)
    page = await site.open(address.removeprefix(site.url))
    await page.get_by_text("ended after 8: did 7").wait_for()
    assert await lines(tmp_path / "mark", 8) == [str(n) for n in range(8)]


async def test_a_token_that_ends_asks_for_another(shared: Site):
    """What was on the screen is not given up silently: the page says that it does not know who is there."""
    async with open_store(shared.store) as store:
        made = await store.add_token(digest("hf_brief"), owner="ada")
        page = await shared.visit(f"{shared.url}/?token=hf_brief")
        await new_session(page)
        await say(page, "say hello there")
        await page.locator("article.answer", has_text="hello there").wait_for()
        await store.revoke_token(made.id)
        await page.get_by_text("restarted with a new one, or yours expired or was revoked").wait_for()
        await store.add_token(digest("hf_next"), owner="ada")
        await page.get_by_label("Token").fill("hf_next")
        await page.get_by_role("button", name="Sign in").click()
        await page.locator("article.answer", has_text="hello there").wait_for()
    shared.problems.clear()  # that it was refused is what this is about


async def test_two_tabs_see_the_same(shared: Site):
    one = await shared.open()
    address = await new_session(one)
    two = await shared.open(address.removeprefix(shared.url))
    await say(one, "say one thing")
    await two.locator("article.answer", has_text="one thing").wait_for()
    await say(two, "deploy")
    for page in (one, two):
        await page.get_by_role("region", name="Approval of deploy").wait_for()
    await one.get_by_role("button", name="Approve").click()
    for page in (one, two):
        await page.locator("article.answer .markdown", has_text="on staging").wait_for()
        await page.get_by_role("region", name="Approval of deploy").wait_for(state="detached")
    assert await texts(one, "article") == await texts(two, "article")
    assert await texts(one, "article.user") == ["say one thing", "deploy"]


async def test_fork_from_a_step(shared: Site):
    page = await shared.open()
    address = await new_session(page, "Origin")
    await say(page, "say first")
    await page.locator("article.answer", has_text="first").wait_for()
    await say(page, "say second")
    await page.locator("article.answer", has_text="second").wait_for()
    await page.get_by_role("link", name="Timeline").click()
    await page.get_by_role("button", name="Model request").first.press("Enter")
    await page.get_by_role("region", name="Step").get_by_text("first").wait_for()
    await page.get_by_role("button", name="Fork from here").click()
    await page.get_by_role("link", name="Conversation").click()
    await page.get_by_role("link", name="Open the fork").click()
    await page.locator("article.answer", has_text="first").wait_for()
    assert page.url != address
    assert await texts(page, "article.user") == ["say first"]


async def test_what_is_said_is_text_and_what_is_large_is_bounded(shared: Site):
    page = await shared.open()
    hostile = "<script>window.hurt=1</script><img src=x onerror=window.hurt=1>[x](javascript:window.hurt=1)"
    await new_session(page, hostile)
    await say(page, f"say {hostile}")
    await page.locator("article.answer", has_text="<script>").wait_for()
    await page.locator(".session .status.idle").wait_for()
    await page.locator(".sessions .title", has_text="<script>").wait_for()
    assert hostile in await texts(page, ".sessions .title")
    assert await page.locator("article :is(img, script, a)").count() == 0
    assert await page.evaluate("window.hurt") is None
    for number, size in enumerate((60_000, 5_000_000), start=1):
        await say(page, f"huge {size}")
        await page.locator("article.answer", has_text="ended after 1").nth(number - 1).wait_for()
        card = page.locator("details.tool").nth(number - 1)
        await card.locator("summary").click()
        if size < 65_536:
            await card.get_by_text("result", exact=True).wait_for()
        else:  # kept outside of the rows: it is a link, and what it leads to is no page
            link = card.get_by_role("link", name="stored as media")
            answer = await page.request.get(shared.url + await link.get_attribute("href"))
            assert "text/html" not in answer.headers["content-type"]
            assert len(await answer.body()) > size // 2  # what looks like base64 is kept decoded
        assert len(await card.inner_text()) < 10_000
    assert await page.get_by_text("56,000 more characters").count() == 1


async def test_a_wrong_token_and_a_way_in(shared: Site):
    page = await (await shared.browser.new_context()).new_page()
    await page.goto(f"{shared.url}/?token=hf_wrong")
    await page.get_by_text("unknown, expired or revoked").wait_for()
    assert "hf_wrong" not in page.url
    await page.get_by_label("Token").fill(TOKEN)
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_text("Signed in as local").wait_for()
    assert TOKEN not in page.url
    assert "holdfast_token" not in await page.evaluate("document.cookie")


async def test_five_thousand_events(site: Site):
    """The end of a long session is there within a second; kinds that nobody knows change nothing."""
    await site.start()
    async with open_store(site.store) as store:
        session = (await store.create_session(agent="agent", owner="local", title="Long")).id
        holder = await store.join("a writer")
        lease = await store.acquire(session, holder)
        await store.write(lease, Batch(segments=[Segment(number=1)]))
        for start in range(0, 2500, 500):
            batch = Batch()
            for n in range(start, start + 500):
                body = TURN[n % 2] % n
                batch.messages = [*batch.messages, Message(segment=1, position=n, body=body)]
                batch.events = [
                    *batch.events,
                    NewEvent(kind="message", message=(1, n)),
                    NewEvent(kind="never_heard_of", payload='{"<b>": 1}'),
                ]
            batch.checkpoints = [Checkpoint(id=f"at-{start}", segment=1, length=start + 500)]
            await store.write(lease, batch)
        await store.leave(holder)
    page = await site.open()
    await page.get_by_text("Long").wait_for()
    times: list[float] = []
    for _ in range(3):  # the best of three: others may be at work on this machine
        await page.goto(f"{site.url}/#/")
        await page.get_by_text("Durable sessions").wait_for()
        await page.evaluate(FIRST_PAINT)
        await page.get_by_text("Long").click()
        times.append(await page.evaluate("window.painted"))
    print("the end of 5,000 events was painted after", *(f"{took:.0f} ms" for took in times))
    assert min(times) < 1000
    assert await page.get_by_role("button", name="Show earlier").count() == 1
    async with tracing(page) as tasks:
        await say(page, "talk")
        await page.get_by_text("word-60 ").wait_for()
        await page.get_by_role("log").hover()
        for _ in range(10):
            await page.mouse.wheel(0, -400)
    longest = max(task["tdur"] for task in tasks) / 1000
    wall = max(task["dur"] for task in tasks) / 1000
    print(
        f"of {len(tasks)} tasks while it streamed the longest worked {longest:.0f} ms, and took {wall:.0f} ms"
    )
    assert len(tasks) > 50
    assert longest < 50
    await page.get_by_role("button", name="Stop").click()
    await page.locator(".session .status.idle").wait_for()


async def test_one_character_at_a_time(shared: Site):
    """A long answer that comes in the smallest pieces: no task of the page is long, and nothing of it is lost."""
    page = await shared.open()
    await new_session(page)
    async with tracing(page) as tasks:
        await say(page, "drip 2000")
        await page.locator(".session .status.idle").wait_for()
        await page.locator("article.answer", has_text="the end").wait_for()
    longest = max(task["tdur"] for task in tasks) / 1000
    print(f"of {len(tasks)} tasks while it dripped the longest worked {longest:.0f} ms")
    assert longest < 50
    (said,) = await texts(page, "article.answer")
    assert said.count("with code and words in it.") >= 40
    assert said.endswith("the end")


TURN = (
    '{"kind":"request","parts":[{"part_kind":"user-prompt","content":"Question %d"}]}',
    '{"kind":"response","parts":[{"part_kind":"text","content":"Answer %d with **bold**"}]}',
)
FIRST_PAINT = """() => {
    window.painted = new Promise((resolve) => {
      addEventListener("click", () => {
        const began = performance.now();
        const seen = new MutationObserver(() => {
          if (!document.querySelector(".conversation")?.lastElementChild.textContent.includes("Answer 2499")) return;
          seen.disconnect();
          requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - began)));
        });
        seen.observe(document.body, { childList: true, subtree: true, characterData: true });
      }, { once: true, capture: true });
    });
}"""
"""Notes when the end of the conversation is on the screen after the next click."""


@asynccontextmanager
async def tracing(page: Page) -> AsyncGenerator[list[dict[str, Any]], None]:
    """Collect the tasks of the page's main thread: `tdur` is how long it worked, `dur` how long that took among others."""
    client = await page.context.new_cdp_session(page)
    await page.evaluate("performance.mark('here')")
    events: list[dict[str, Any]] = []
    done = asyncio.Event()

    def collect(data: dict[str, Any]) -> None:
        events.extend(data["value"])

    def complete(_: object) -> None:
        done.set()

    client.on("Tracing.dataCollected", collect)
    client.on("Tracing.tracingComplete", complete)
    categories = "disabled-by-default-devtools.timeline,toplevel,blink.user_timing,devtools.timeline"
    await client.send("Tracing.start", {"categories": categories, "transferMode": "ReportEvents"})
    await page.evaluate("performance.mark('ours')")
    tasks: list[dict[str, Any]] = []
    yield tasks
    await client.send("Tracing.end")
    async with asyncio.timeout(20):
        await done.wait()
    ours = next((event["pid"], event["tid"]) for event in events if event.get("name") == "ours")
    tasks += [
        event
        for event in events
        if event.get("ph") == "X"
        and (event["pid"], event["tid"]) == ours
        and event["name"].endswith("RunTask")
        and "tdur" in event
    ]
