"""A real browser on a real server. Where there is no browser these tests take no part, and say so."""

import os
import shutil
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from signal import SIGKILL
from typing import Any, TypeAlias

import pytest
import pytest_asyncio

from holdfast.store import open_store
from tests.server.fronts import Front, front

Page: TypeAlias = Any
"""A page of playwright, which is in the dependency group `browser` and may be absent."""
HERE = Path(__file__).parent
TOKEN = "hf_of-the-browser-tests"
_OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-dev-shm-usage",
]
_left_out = pytest.StashKey[int]()


def missing() -> str | None:
    """Say what the tests need and is not here."""
    if find_spec("playwright") is None:
        return "playwright is not installed (pip install --group browser)"
    if shutil.which("chromium") is None:
        return "there is no chromium (Debian: apt-get install -y --no-install-recommends chromium)"
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if missing() is None:
        return
    dropped = [item for item in items if HERE in item.path.parents]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        config.stash[_left_out] = len(dropped)
        items[:] = [item for item in items if HERE not in item.path.parents]


def pytest_report_collectionfinish(config: pytest.Config) -> str:
    left_out = config.stash.get(_left_out, 0)
    return (
        f"the browser takes no part in {left_out} tests: {missing()}"
        if left_out
        else "the browser takes part"
    )


@dataclass
class Site:
    """A server that can be killed and started again at the same address, and a browser that looks at it."""

    store: str
    browser: Any
    problems: list[str] = field(default_factory=list[str])
    hold: float = 0
    _port: int = 0
    _server: Front | None = None
    _running: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def url(self) -> str:
        assert self._server is not None
        return self._server.url

    async def start(self) -> None:
        self._port = self._port or _free_port()
        os.environ["HOLD"] = str(self.hold)
        settings = {"token": TOKEN, "lease_ttl_seconds": 2, "lease_renew_seconds": 0.5}
        started = front(self.store, "--port", str(self._port), "tests.browser.app:served", **settings)
        self._server = await self._running.enter_async_context(started)

    async def stop(self) -> None:
        await self._running.aclose()

    async def kill(self) -> None:
        """Kill the server and its worker with no chance to say a word."""
        assert self._server is not None
        workers = await self.workers()
        self._server.process.send_signal(SIGKILL)
        for pid in workers:
            with suppress(ProcessLookupError):
                os.kill(pid, SIGKILL)
        await self._server.process.wait()
        await self._running.aclose()

    async def workers(self) -> list[int]:
        """Return the process ids of those who hold sessions: they are in their names."""
        async with open_store(self.store) as store:
            return [int(holder.name.rpartition(":")[2]) for holder in await store.holders()]

    async def open(self, path: str = "/", **options: Any) -> Page:
        """Open a tab of its own, signed in, that must not complain."""
        page = await self.visit(f"{self.url}/?token={TOKEN}", **options)
        if path != "/":
            await page.goto(f"{self.url}{path}")
        return page

    async def visit(self, address: str, **options: Any) -> Page:
        """Open any address in a tab of its own."""
        context = await self.browser.new_context(**options)
        context.set_default_timeout(60_000)
        page = await context.new_page()
        page.on("pageerror", self._note_error)
        page.on("console", self._note)
        await page.goto(address)
        return page

    def _note_error(self, error: Any) -> None:
        self.problems.append(str(error))

    def _note(self, message: Any) -> None:
        # That the server is away is told to the person; the browser notes it as well.
        # What a guard refuses is told as well; and whether a policy applies is asked of every server.
        expected = ("net::ERR", "status of 409", "status of 422")
        asked = str(message.location.get("url", "")).endswith(("/retention", "/rehydrate"))
        if message.type == "error" and not asked and not any(one in message.text for one in expected):
            self.problems.append(message.text)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator[Any, None]:
    async with import_module("playwright.async_api").async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=_OPTIONS)
        try:
            yield browser
        finally:
            await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def site(browser: Any, tmp_path: Path) -> AsyncGenerator[Site, None]:
    """A site of its own, which the test starts."""
    site = Site(f"sqlite:///{tmp_path}/store.db", browser)
    try:
        async with _visited(site):
            yield site
    finally:
        await site.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Site, None]:
    site = Site(f"sqlite:///{tmp_path_factory.mktemp('shared')}/store.db", browser)
    try:
        await site.start()
        yield site
    finally:
        await site.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def shared(running: Site) -> AsyncGenerator[Site, None]:
    """A site that runs already. It has the sessions of other tests."""
    async with _visited(running):
        yield running


@asynccontextmanager
async def _visited(site: Site) -> AsyncGenerator[None, None]:
    """Close all tabs in the end, and check that none of them complained."""
    try:
        yield
        assert site.problems == []
    finally:
        site.problems.clear()
        for context in site.browser.contexts:
            await context.close()


async def new_session(page: Page, title: str = "A session") -> str:
    """Make a session as a person does, and return its address."""
    await page.get_by_role("button", name="New", exact=True).click()
    await page.get_by_role("textbox", name="Title").fill(title)
    await page.get_by_role("button", name="Create").click()
    await page.get_by_role("log").wait_for()
    return page.url


async def say(page: Page, text: str) -> None:
    await page.get_by_role("textbox", name="Message").fill(text)
    await page.keyboard.press("Enter")


async def texts(page: Page, selector: str) -> list[str]:
    """Return what is to be seen of all that match."""
    found: list[str] = await page.locator(selector).all_inner_texts()
    return [" ".join(text.split()) for text in found]
