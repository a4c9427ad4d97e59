"""Webhooks and notifications of the browser on the page. All tests share one server and one browser; each has a tab of its own."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from typing import Any
from unittest.mock import patch

import pytest
import pytest_asyncio

from holdfast.server.auth import digest
from holdfast.store import open_store
from tests.browser.conftest import Page, Site, new_session, say, texts
from tests.browser.test_demo import shoot
from tests.browser.test_views import SMALL
from tests.builders import until
from tests.notices.receiver import Receiver

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]
RECORDER = """
    window.shown = [];
    window.asked = 0;
    window.reads = 0;
    const fetched = window.fetch;
    window.fetch = (path, ...rest) => {
        if (path.startsWith("/api/sessions?")) window.reads += 1;
        return fetched(path, ...rest);
    };
    const granted = "GRANTED";
    window.Notification = class {
        static permission = granted === "asks" ? "default" : granted;
        static async requestPermission() {
            window.asked += 1;
            if (granted === "asks") this.permission = "granted";
            return this.permission;
        }
        constructor(title, options) { window.shown.push({ title, ...options, self: this }); }
        close() {}
    };
    if (granted === "unsupported") delete window.Notification;
"""
"""Records the notifications that the page shows, and counts how often it reads the sessions."""
HIDE = """(hidden) => {
    Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""
SHOWN = "window.shown.map(({ title, body }) => [title, body])"


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def networks() -> AsyncGenerator[None, None]:
    with patch.dict(os.environ, {"HOLDFAST_WEBHOOK_NETWORKS": "127.0.0.0/8"}):
        yield


async def create(page: Page, url: str, *labels: str) -> None:
    form = page.get_by_role("form", name="Subscribe a webhook")
    await form.get_by_label("URL of the webhook").fill(url)
    for label in labels:
        await form.get_by_label(label).check()
    await form.get_by_role("button", name="Subscribe").click()


async def delete(page: Page, url: str) -> None:
    row = page.locator("tr", has_text=url)
    asks = page.get_by_role("dialog", name="Delete the subscription")
    for answer in ("Cancel", "Delete"):
        await row.get_by_role("button", name="Delete").click()
        await asks.get_by_role("button", name=answer).click()
    await row.wait_for(state="detached")


async def repeat_the_delivery(page: Page, receiver: Receiver) -> None:
    deliveries = page.get_by_role("region", name="Deliveries")
    sent = deliveries.locator("tbody tr")
    await sent.get_by_text("status 204").wait_for()
    assert await sent.locator("td[data-label=attempts]").inner_text() == "1"
    await deliveries.get_by_label("State").select_option("undeliverable")
    await deliveries.get_by_text("There are no undeliverable deliveries.").wait_for()
    await deliveries.get_by_label("State").select_option("delivered")
    await sent.get_by_role("button", name="again").click()

    async def sent_twice() -> bool:
        return len(receiver.requests) == 2

    await until(sent_twice)


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
async def test_a_webhook_is_created_tested_paused_and_deleted(shared: Site, look: str):
    options: dict[str, Any] = {
        "light": {"permissions": ["clipboard-read", "clipboard-write"]},
        "dark": {"color_scheme": "dark"},
        "phone": {"viewport": {"width": 390, "height": 780}, "has_touch": True},
    }[look]
    async with Receiver().listening() as receiver:
        page = await shared.open(**options)
        await page.get_by_role("link", name="Notices", exact=True).click()
        form = page.get_by_role("form", name="Subscribe a webhook")
        await create(page, "https://10.0.0.1/hook", "A turn ended")
        await form.get_by_role("alert").get_by_text("the address 10.0.0.1 is not public").wait_for()
        await form.get_by_label("A turn ended").uncheck()
        url = receiver.url()
        await create(page, url, "Include texts")
        await form.get_by_role("alert").get_by_text("at least one kind").wait_for()
        await create(
            page, url, "A turn ended", "A session waits for a person", "For the sessions of everyone"
        )
        secret = page.get_by_role("dialog", name="Secret")
        await secret.get_by_text("it is not shown again").wait_for()
        shown = await secret.locator("code.secret").inner_text()
        assert shown.startswith("whsec_")
        if look == "light":
            await secret.get_by_role("button", name="Copy").click()
            await secret.get_by_text("Copied.").wait_for()
            assert await page.evaluate("navigator.clipboard.readText()") == shown
        await shoot(page, f"notices secret {look}")
        await secret.get_by_role("button", name="Close").click()
        row = page.locator("tr", has_text=url)
        await row.get_by_text("everyone").wait_for()
        assert await row.locator(".badge").all_inner_texts() == ["waiting", "done", "active"]
        assert await page.get_by_text(shown).count() == 0
        await row.get_by_role("button", name="Send a test to").click()
        await repeat_the_delivery(page, receiver)
        await row.get_by_role("button", name="Rotate the secret of").click()
        await secret.wait_for()
        assert await secret.locator("code.secret").inner_text() != shown
        await page.keyboard.press("Escape")
        await row.get_by_role("button", name="Pause").click()
        await row.get_by_text("paused").wait_for()
        assert await row.get_by_role("button", name="Send a test to").is_disabled()
        await row.get_by_role("button", name="Resume").click()
        await row.get_by_text("active").wait_for()
        await shoot(page, f"notices {look}")
        if look == "phone":
            assert await page.evaluate(SMALL) == []
        wide = "Math.max(...['html', 'main', '.page'].map((one) => document.querySelector(one).scrollWidth))"
        assert await page.evaluate(f"{wide} <= innerWidth")
        await delete(page, url)


async def test_deliveries_of_a_session_and_a_receiver_that_fails(shared: Site):
    async with Receiver(b"HTTP/1.1 500 No\r\n\r\n").listening() as receiver:
        page = await shared.open("/#/notices")
        await create(page, receiver.url(), "A turn ended")
        await page.get_by_role("button", name="Close").click()
        row = page.locator("tr", has_text=receiver.url())
        await row.get_by_role("link").click()
        deliveries = page.get_by_role("region", name="Deliveries")
        await deliveries.get_by_text("There are no deliveries.").wait_for()
        notices = page.url
        await new_session(page, "Announced")
        session_id = page.url.rpartition("/")[2]
        await say(page, "say done")
        await page.locator("article.answer", has_text="done").wait_for()
        await page.goto(notices)
        sent = deliveries.locator("tbody tr")
        await sent.get_by_text("the receiver responded with status 500").wait_for()
        await row.get_by_text("failing").wait_for()
        await sent.locator("td[data-label=state]", has_text="pending").wait_for()
        await sent.locator("td[data-label=next] time").wait_for()
        tries = len(receiver.requests)
        await sent.get_by_role("button", name="again").click()  # now, although the next attempt is due later

        async def tried() -> bool:
            return len(receiver.requests) > tries

        await until(tried)
        await sent.get_by_role("link", name=session_id).click()
        await page.locator("article.answer", has_text="done").wait_for()
        await page.goto(notices)
        await delete(page, receiver.url())


async def test_a_token_that_only_reads_sees_no_controls(shared: Site):
    async with open_store(shared.store) as store:
        await store.add_token(digest("hf_only_reads"), owner="local", scopes=["read"])
        await store.add_token(digest("hf_of_a_user"), owner="local")
    page = await shared.open("/#/notices")
    await create(page, "https://example.com/seen", "A turn failed")
    await page.get_by_role("button", name="Close").click()
    reader = await shared.visit(f"{shared.url}/?token=hf_only_reads")
    await reader.get_by_role("link", name="Notices", exact=True).click()
    row = reader.locator("tr", has_text="https://example.com/seen")
    await row.get_by_role("link").click()
    await reader.get_by_role("region", name="Deliveries").wait_for()
    assert await reader.locator(".pane form").count() == 0
    assert await texts(reader, ".pane button") == ["Turn on notifications"]
    user = await shared.visit(f"{shared.url}/?token=hf_of_a_user")
    await user.get_by_role("link", name="Notices", exact=True).click()
    await user.get_by_role("form", name="Subscribe a webhook").wait_for()
    assert await user.get_by_label("For the sessions of everyone").count() == 0


async def open_recorded(site: Site, permission: str, **options: Any) -> Page:
    """Open the page in a browser that records notifications. It has the permission, is `denied` it, `asks`, or is `unsupported`."""
    page = await site.open(**options)
    await page.context.add_init_script(RECORDER.replace("GRANTED", permission))
    await page.clock.install()
    await page.goto(f"{site.url}/#/notices")
    await page.reload()
    return page


async def run_turn(site: Site, title: str, message: str, status: str) -> str:
    """Run a turn in a new session, and return its id when it has this status."""
    async with open_store(site.store) as store:
        session = await store.create_session(agent="agent", owner="local", title=title)
        await store.submit(session.id, "message", json.dumps({"text": message}))

        async def has_status() -> bool:
            return (await store.session(session.id)).status == status

        await until(has_status)
    return session.id


async def pass_time(page: Page, *, until: str) -> None:
    """Let the page read the sessions, until an expression is true."""
    async with asyncio.timeout(60):
        while not await page.evaluate(until):
            await page.clock.run_for(10_000)
            await asyncio.sleep(0.1)


async def pass_polls(*pages: Page) -> None:
    """Let hidden pages read the sessions once more."""
    for page in pages:
        await page.evaluate("window.reads = 0")
        await pass_time(page, until="window.reads >= 2")


@pytest.mark.parametrize("look", ["light", "dark"])
async def test_a_hidden_page_shows_each_event_once_and_a_click_opens_the_session(shared: Site, look: str):
    page = await open_recorded(shared, "asks", color_scheme=look)
    assert await page.evaluate("window.asked") == 0  # never on load
    await page.get_by_role("button", name="Turn on notifications").click()
    await page.get_by_role("button", name="Turn off notifications").wait_for()
    assert await page.evaluate("window.asked") == 1
    await shoot(page, f"notifications {look}")
    await run_turn(shared, f"Seen {look}", "say something", "idle")  # the page is visible
    await page.evaluate(HIDE, True)
    await pass_polls(page)
    assert await page.evaluate(SHOWN) == []
    asks = await run_turn(shared, f"Asks {look}", "remove the notes", "waiting")
    await run_turn(shared, f"Ends {look}", "say something", "idle")
    await run_turn(shared, f"Fails {look}", "book", "failed")
    await pass_time(page, until="window.shown.length >= 3")
    await pass_polls(page)
    assert sorted(await page.evaluate(SHOWN)) == [
        [f"Asks {look}", "Waiting for you"],
        [f"Ends {look}", "The turn ended"],
        [f"Fails {look}", "The last turn failed"],
    ]
    await page.evaluate("window.shown.find(({ title }) => title.startsWith('Asks')).self.onclick()")
    await page.get_by_role("region", name="Approval of remove").wait_for()
    assert page.url.endswith(asks)
    await page.evaluate("window.shown = []")
    await page.evaluate(HIDE, False)
    await page.get_by_role("button", name="Approve", exact=True).click()
    await page.locator(".session .status.idle").wait_for()
    await page.clock.run_for(30_000)
    await page.evaluate(HIDE, True)
    await pass_polls(page)
    assert await page.evaluate(SHOWN) == []  # it ended while the page was visible


async def test_two_hidden_tabs_show_an_event_with_the_same_tag_and_off_is_off(shared: Site):
    page = await open_recorded(shared, "granted")
    assert await page.get_by_role("button", name="Turn off notifications").count() == 0  # permitted, but off
    await page.get_by_role("button", name="Turn on notifications").click()
    await page.get_by_role("button", name="Turn off notifications").wait_for()
    second = await page.context.new_page()
    await second.goto(f"{shared.url}/#/notices")
    await second.get_by_role("button", name="Turn off notifications").wait_for()  # in all tabs
    for each in (page, second):
        await each.evaluate(HIDE, True)
    await pass_polls(page, second)
    await run_turn(shared, "Once", "say something", "idle")
    await pass_polls(page, second, page)
    tags = [
        tag for each in (page, second) for tag in await each.evaluate("window.shown.map(({ tag }) => tag)")
    ]
    assert len(set(tags)) == 1
    for each in (page, second):
        await each.evaluate(HIDE, False)
        await each.reload()
        await each.evaluate("window.shown = []")
    await page.get_by_role("button", name="Turn off notifications").click()
    await second.reload()
    await second.get_by_role("button", name="Turn on notifications").wait_for()


@pytest.mark.parametrize("permission", ["denied", "unsupported"])
async def test_a_browser_that_shows_no_notifications_says_why(shared: Site, permission: str):
    page = await open_recorded(shared, permission)
    button = page.get_by_role("button", name="Turn on notifications")
    section = page.get_by_role("region", name="Notifications")
    if permission == "denied":
        await button.click()
        await section.get_by_text("The browser blocks notifications of this page. Allow them").wait_for()
    else:
        await section.get_by_text("This browser cannot show notifications of this page").wait_for()
        assert await button.is_disabled()
