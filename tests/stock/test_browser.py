"""Stock `useChat` and the stock HttpAgent in a real browser, with a real server and worker processes that are killed."""

import asyncio
import os
import subprocess
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from holdfast.store import open_store
from tests.browser.conftest import Page, Site
from tests.promises.workers import lines
from tests.stock.conftest import PACKAGES

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]
VERSIONS = {"ai-6": {}, "ai-7": {"ai": "ai-7", "@ai-sdk/react": "ai-react-7"}}
WORDS = " ".join(f"word-{number}" for number in range(300))
LAST = "word-299"
HTML = '<!doctype html><div id="root"></div><script type="module" src="/stock/{}.js"></script>'


def bundle(version: str) -> Path:
    """Bundle the page with one version of the AI SDK."""
    packages = PACKAGES / "node_modules"
    script = PACKAGES / f"{version}.js"
    aliases = [f"--alias:{name}={installed}" for name, installed in VERSIONS[version].items()]
    options = ["--bundle", "--format=esm", "--jsx=automatic", "--log-level=error", f"--outfile={script}"]
    command = [packages / ".bin" / "esbuild", Path(__file__).with_name("page.jsx"), *options, *aliases]
    subprocess.run(command, check=True, env=os.environ | {"NODE_PATH": str(packages)})
    return script


async def visit(site: Site, script: Path, session_id: str, front: str) -> Page:
    """Open the page of a front end, which the server itself seems to have: so the cookie of the server is sent."""
    async with open_store(site.store) as store:
        await store.create_session(agent="agent", owner="admin", id=session_id)

    async def send_page(route: Any) -> None:
        await route.fulfill(body=HTML.format(script.stem), content_type="text/html")

    async def send_script(route: Any) -> None:
        await route.fulfill(path=script, content_type="text/javascript")

    page = await site.open()
    await page.route("**/stock/page?**", send_page)
    await page.route("**/stock/*.js", send_script)
    await page.goto(f"{site.url}/stock/page?id={session_id}&front={front}")
    return page


async def say(page: Page, text: str) -> None:
    await page.get_by_role("textbox").fill(text)
    await page.keyboard.press("Enter")


async def is_ready(page: Page) -> None:
    await page.locator("output", has_text="ready").wait_for()


async def kill_worker(pids: list[int], page: Page) -> None:
    """Kill the worker while the page waits for it. `holdfast serve` starts another one."""
    for pid in pids:
        os.kill(pid, SIGKILL)
    assert await page.locator("output").inner_text() == "streaming"


async def next_workers(site: Site, killed: list[int]) -> list[int]:
    """Wait for the worker that replaces a killed one."""
    async with asyncio.timeout(60):
        while True:
            workers = [pid for pid in await site.workers() if pid not in killed]
            if workers:
                return workers
            await asyncio.sleep(0.05)


async def shown(page: Page) -> list[tuple[str, list[str]]]:
    """Return the conversation as the page has it."""
    return [
        (
            await article.get_attribute("class"),
            [" ".join(text.split()) for text in await article.locator("p").all_inner_texts()],
        )
        for article in await page.locator("article").all()
    ]


async def recoveries(site: Site, session_id: str) -> int:
    async with open_store(site.store) as store:
        return sum(event.kind == "recovered" for event in await store.events(session_id, limit=10_000))


@pytest.mark.parametrize("version", VERSIONS)
async def test_use_chat_survives_reloads_and_killed_workers(site: Site, version: str, tmp_path: Path):
    site.hold = 1
    await site.start()
    page = await visit(site, bundle(version), "chat", "use-chat")
    await is_ready(page)
    workers = await next_workers(site, [])
    await say(page, f"say {WORDS}")
    answers = page.locator("article.assistant p")
    await answers.get_by_text("word-10 ").wait_for()
    await page.reload()
    await answers.get_by_text("word-20 ").wait_for()
    await kill_worker(workers, page)
    await answers.get_by_text(LAST).wait_for()
    await is_ready(page)
    first = [("user", [f"say {WORDS}"]), ("assistant", [WORDS])]
    assert await shown(page) == first

    mark = tmp_path / "mark"
    workers = await next_workers(site, workers)
    await say(page, f"work 6 {mark}")
    await lines(mark, 2)
    await page.reload()
    await page.locator("output", has_text="streaming").wait_for()
    await lines(mark, len(await lines(mark, 2)) + 1)
    await kill_worker(workers, page)
    await page.get_by_text("ended after 6").wait_for()
    await is_ready(page)
    assert await lines(mark, 6) == ["0", "1", "2", "3", "4", "5"]
    assert await recoveries(site, "chat") == 2
    calls = (await shown(page))[-1][1][:-1]
    assert [call.split()[0:2] for call in calls] == [["tool-act", "output-available"]] * 6

    await say(page, f"remove and say {WORDS}")
    await page.get_by_role("button", name="Approve").wait_for()
    await page.reload()
    await page.get_by_role("button", name="Approve").click()
    await answers.get_by_text("word-10 ").nth(1).wait_for()
    await page.reload()
    await answers.get_by_text(LAST).nth(1).wait_for()
    await is_ready(page)
    before = await shown(page)
    removed = 'tool-remove output-available {"path":"notes.txt"} removed notes.txt'
    assert before == [
        *first,
        ("user", [f"work 6 {mark}"]),
        ("assistant", [*calls, "ended after 6: did 5"]),
        ("user", [f"remove and say {WORDS}"]),
        ("assistant", [removed, WORDS]),
    ]
    await page.reload()
    await answers.get_by_text(LAST).nth(1).wait_for()
    await is_ready(page)
    assert await shown(page) == before
    async with open_store(site.store) as store:
        kinds = [sent.kind for sent in (await store.submissions("chat")).items]
    assert kinds == ["message", "message", "message", "approval"]


async def test_an_http_agent_survives_reloads_and_killed_workers(site: Site):
    await site.start()
    page = await visit(site, bundle("ai-6"), "thread", "ag-ui")
    workers = await next_workers(site, [])
    await say(page, f"say {WORDS}")
    answers = page.locator("article.assistant p")
    await answers.get_by_text("word-10 ").wait_for()
    await page.reload()
    await answers.get_by_text("word-20 ").wait_for()
    await kill_worker(workers, page)
    await answers.get_by_text(LAST).wait_for()
    await is_ready(page)
    assert await shown(page) == [("user", [f"say {WORDS}"]), ("assistant", [WORDS])]
    assert await recoveries(site, "thread") == 1

    await say(page, f"remove and say {WORDS}")
    await page.get_by_role("button", name="Approve").wait_for()
    await page.reload()
    await page.get_by_role("button", name="Approve").click()
    await answers.get_by_text("word-10 ").nth(1).wait_for()
    await page.reload()  # the same run again, with the same answers
    await answers.get_by_text(LAST).nth(1).wait_for()
    await is_ready(page)
    before = await shown(page)
    assert before[2:] == [
        ("user", [f"remove and say {WORDS}"]),
        ("assistant", ['remove {"path": "notes.txt"}']),
        ("tool", ["removed notes.txt"]),
        ("assistant", [WORDS]),
    ]
    await page.reload()
    await is_ready(page)
    assert await shown(page) == before
    async with open_store(site.store) as store:
        kinds = [sent.kind for sent in (await store.submissions("thread")).items]
    assert kinds == ["message", "message", "approval"]
