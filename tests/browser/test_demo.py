"""The demo as a newcomer sees it, and a picture of every view. The pictures are kept, to be looked at."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.browser.conftest import Page, Site, texts
from tests.builders import until
from tests.promises.workers import lines

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]
ROOT = Path(__file__).parents[2]
SHOTS = Path(os.environ.get("SCREENSHOTS", ROOT / "build" / "screenshots"))


async def comes_true(page: Page, expression: str) -> None:
    """Wait until something holds in the page. Playwright's own way needs what the page's policy forbids."""

    async def holds() -> bool:
        return bool(await page.evaluate(expression))

    await until(holds)


async def shoot(page: Page, name: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    await page.screenshot(path=SHOTS / f"{name}.png")


@pytest_asyncio.fixture(loop_scope="module")
async def demo(site: Site, tmp_path: Path) -> AsyncGenerator[str, None]:
    """`holdfast demo`, and the address that it prints."""
    quick = {"HOLDFAST_LEASE_TTL_SECONDS": "2", "HOLDFAST_LEASE_RENEW_SECONDS": "0.5"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "holdfast", "demo", "--keep", str(tmp_path)),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | quick,
    )
    try:
        assert process.stdout is not None
        async for line in process.stdout:
            if found := re.search(r"serves at (\S+)", line.decode()):
                yield found[1]
                break
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        assert await asyncio.wait_for(process.wait(), 30) == 0


async def test_the_three_things_to_try(site: Site, demo: str, tmp_path: Path):
    page = await site.visit(demo, viewport={"width": 1200, "height": 800})
    assert len(await texts(page, ".welcome li")) == 3
    await shoot(page, "welcome")
    await page.get_by_role("button", name="Prepare a release").click()
    # What a command writes is there while it runs.
    await page.locator("pre.live", has_text="checking links").wait_for()
    assert await page.locator(".badge.running").count() == 1
    await shoot(page, "live output")
    address = page.url
    # 1. Close the tab in mid-turn.
    await page.context.close()
    await lines(tmp_path / "releases.log", 1)
    page = await site.visit(demo, viewport={"width": 1200, "height": 800})
    await page.goto(address)
    # 2. Kill the worker while its tool has written and has not returned.
    await page.locator(".tool.running .tool-name", has_text="note").wait_for()
    await page.get_by_role("button", name="Kill the worker").click()
    await page.locator(".mark.good", has_text="Recovered").wait_for()
    await page.locator(".tool.unknown .tool-name", has_text="note").wait_for()
    card = page.get_by_role("region", name="Approval of deploy")
    await card.wait_for()
    # The picture that it made is media, and has come; the question is in sight all the same.
    await comes_true(page, "document.querySelector('img.picture')?.naturalWidth === 420")
    await comes_true(
        page, "document.querySelector('.approval').getBoundingClientRect().bottom <= innerHeight"
    )
    await page.locator(
        ".sessions .status.waiting"
    ).wait_for()  # the list has a mark on what waits for a person
    await shoot(page, "approval")
    if picture := os.environ.get("PICTURE"):
        await page.set_viewport_size({"width": 1200, "height": 1000})
        await comes_true(page, "document.querySelector('.mark.good').getBoundingClientRect().top > 100")
        await page.screenshot(path=picture)
    await card.get_by_role("button", name="Approve").click()
    await page.get_by_text("The release is complete").wait_for()
    await page.locator(".session .status.idle").wait_for()
    assert (tmp_path / "releases.log").read_text() == "release 1.0\n"
    await shoot(page, "conversation")
    said = await texts(page, "article")
    await page.get_by_role("link", name="Timeline").click()
    await page.locator("rect.delegate").wait_for()
    await page.locator(".sign.recovered").wait_for()
    await page.get_by_role("button", name="Tool note").first.press("Enter")
    await page.get_by_role("region", name="Step").wait_for()
    await shoot(page, "timeline")
    await page.get_by_role("link", name="Tool calls").click()
    await page.locator(".effects .badge.unknown").wait_for()
    await shoot(page, "tool calls")
    await keep_clean_and_bring_back(page, tmp_path / "archive.gz")
    await page.get_by_role("link", name="Conversation").click()
    await page.get_by_text("The release is complete").wait_for()
    assert await texts(page, "article") == said
    await page.get_by_role("link", name="Workers").click()
    await page.get_by_text("shell commands", exact=True).wait_for()
    await shoot(page, "workers")


async def test_the_second_act_sleeps_asks_and_takes_the_default(site: Site, demo: str):
    page = await site.visit(demo, viewport={"width": 1200, "height": 800})
    await page.get_by_role("button", name="Publish later").click()
    await page.locator(".session .status.sleeping").wait_for()
    await page.locator(".session .facts .sleeps", has_text="timer until").wait_for()
    await shoot(page, "sleeping")
    await page.get_by_role("region", name="Approval of publish").wait_for()
    await shoot(page, "expiring question")
    await page.get_by_text("This turn is complete").wait_for()
    assert (await texts(page, "details.tool > summary .badge")) == ["done", "denied"]


async def keep_clean_and_bring_back(page: Page, archive: Path) -> None:
    """3. Export, clean behind its guards, restore by dropping the file."""
    await page.get_by_role("link", name="Retention").click()
    cleaning = page.get_by_role("region", name="Clean")
    await cleaning.get_by_role("button", name="Preview").click()
    await cleaning.get_by_role("alert").get_by_text("it was active").wait_for()
    await shoot(page, "retention")
    async with page.expect_download() as download:
        await page.get_by_role("link", name="Export the archive").click()
    await (await download.value).save_as(archive)
    await cleaning.get_by_label("Only if idle for").fill("0")
    await page.get_by_label("Hold:").check()
    await page.locator(".session .badge", has_text="on hold").wait_for()
    await cleaning.get_by_role("button", name="Clean now").click()
    await cleaning.get_by_role("alert").get_by_text("hold").wait_for()
    await page.get_by_label("Hold:").uncheck()
    await page.locator(".session .badge", has_text="on hold").wait_for(state="detached")
    await cleaning.get_by_label("Keep an archive").uncheck()
    await cleaning.get_by_role("button", name="Preview").click()
    await cleaning.get_by_role("status").get_by_text("messages").wait_for()
    await cleaning.get_by_role("button", name="Clean now").click()
    await page.get_by_role("button", name="Delete permanently").click()
    back = page.get_by_role("region", name="Restore")
    await back.get_by_text("There is no archive on the server").wait_for()
    await page.get_by_role("region", name="Audit").get_by_text("local cleaned it").wait_for()
    await shoot(page, "cleaned")
    await drop(page, b"not an archive", "nonsense.gz")
    await back.get_by_role("alert").get_by_text("rchive").wait_for()
    await drop(page, archive.read_bytes(), archive.name)
    await cleaning.wait_for()


async def drop(page: Page, content: bytes, name: str) -> None:
    """Drop a file onto the page as a hand does."""
    handle = await page.evaluate_handle(
        """([bytes, name]) => {
            const data = new DataTransfer();
            data.items.add(new File([new Uint8Array(bytes)], name));
            return data;
        }""",
        [list(content), name],
    )
    await page.dispatch_event(".drop", "drop", {"dataTransfer": handle})


@pytest.mark.parametrize("look", ["dark", "phone"])
async def test_dark_and_on_a_phone(site: Site, demo: str, look: str):
    options: dict[str, Any] = {
        "dark": {"color_scheme": "dark", "viewport": {"width": 1200, "height": 800}},
        "phone": {"viewport": {"width": 390, "height": 780}, "has_touch": True},
    }[look]
    page = await site.visit(demo, **options)
    await page.get_by_role("button", name="Prepare a release").click()
    await page.locator("pre.live", has_text="checking links").wait_for()
    await shoot(page, f"{look} live")
    for view in ("Timeline", "Tool calls", "Retention"):
        await page.get_by_role("link", name=view).click()
        await page.get_by_role("link", name=view, exact=True).wait_for()
        await comes_true(page, "document.querySelector('.pane')?.textContent.length > 20")
        await shoot(page, f"{look} {view.lower()}")
        wide = (
            "Math.max(...['html', 'main', '.session'].map((one) => document.querySelector(one).scrollWidth))"
        )
        assert await page.evaluate(f"{wide} <= innerWidth"), view  # nothing sticks out
    # Every control has a name.
    unnamed = await page.evaluate(
        """() => [...document.querySelectorAll('button, a, input, select, textarea')]
            .filter((one) => !one.closest('.unseen'))
            .filter((one) => !(one.ariaLabel || one.textContent.trim() || one.labels?.length || one.title))
            .map((one) => one.outerHTML)"""
    )
    assert unnamed == []
    await page.get_by_role("link", name="Conversation").click()
    await page.get_by_role("button", name="Stop").click()
    await page.locator(".session .status.idle").wait_for()
