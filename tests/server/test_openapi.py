"""The document that the server gives of itself is complete, and true under attack."""

import asyncio
import threading
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any, Self, cast

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from pydantic import BaseModel
from schemathesis import GenerationMode

from holdfast.config import load_settings
from holdfast.server import create_app
from holdfast.shell import ShellService
from holdfast.store import open_store
from tests.server.examples import example_bodies


class _Server:
    """The application on a real socket, in a thread of its own."""

    def __init__(self, folder: Any) -> None:
        self._folder = folder
        self.url = ""
        self._ready = threading.Event()
        self._server: uvicorn.Server | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        async with open_store(f"sqlite:///{self._folder}/store.db") as store:
            await store.create_session(agent="agent", owner="local", id="s1")
            app = create_app(load_settings(token="hf_test", max_pending=20), store)
            self._server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
            self._server.config.load()
            self._server.lifespan = self._server.config.lifespan_class(self._server.config)
            await self._server.startup()
            port = self._server.servers[0].sockets[0].getsockname()[1]
            self.url = f"http://127.0.0.1:{port}"
            self._ready.set()
            await self._server.main_loop()
            await self._server.shutdown()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.should_exit = True
        self._thread.join(30)


def _models(kind: type[BaseModel] = BaseModel) -> Iterator[type[BaseModel]]:
    for each in kind.__subclasses__():
        yield each
        yield from _models(each)


def test_every_body_has_an_example_and_every_example_is_valid():
    store = open_store("sqlite://:memory:")
    bodies = example_bodies(create_app(load_settings(), store, shell=ShellService(store)))
    assert len(bodies) > 15
    checked = 0
    for model in _models():
        extra = model.model_config.get("json_schema_extra")
        if model.__module__.startswith("holdfast.") and isinstance(extra, dict):
            for example in cast("list[Any]", extra["examples"]):
                model.model_validate(example)
                checked += 1
    assert checked > 15


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[_Server, None, None]:
    with _Server(tmp_path_factory.mktemp("openapi")) as running:
        yield running


@pytest.mark.timeout(400)
def test_no_request_breaks_it(server: _Server, long: bool, thorough: bool):
    """Every operation of the document, with what it allows and what it does not; all checks on.

    The same requests every time, so that whoever changed nothing breaks nothing; with `--long` ever new ones.
    """
    schema: Any = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    attacked = 0
    for found in schema.get_all_operations():
        for mode in GenerationMode:
            if mode.is_positive and found.ok().path in {"/api/chat", "/api/ag-ui"}:
                continue  # their messages have schemas of others, and their streams no end: tests/server/test_chat.py
            route = found.ok().method.upper(), found.ok().path
            if mode.is_positive and route == ("POST", "/api/schedules"):
                continue  # cron expressions and time zones have no schema: tests/server/test_schedules.py
            if mode.is_positive and route == ("PUT", "/api/budgets"):
                continue  # whether it needs a name depends on what it is for: tests/server/test_budgets.py
            if (
                mode.is_positive
                and route[1].startswith("/api/subscriptions")
                and route[0] in {"POST", "PATCH"}
            ):
                continue  # webhook URLs and secrets have no schema: tests/server/test_subscriptions.py
            with suppress(Unsatisfiable):  # nothing that is wrong can be said to it
                _attack(found.ok(), mode, anew=long, examples=10 if thorough else 3)
                attacked += 1
    assert attacked > 40


def _attack(operation: Any, mode: GenerationMode, *, anew: bool, examples: int) -> None:
    @settings(
        derandomize=not anew,
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def attack(case: Any) -> None:
        if mode.is_positive and case.query:
            case.query.pop("cursor", None)  # opaque: only one that a page gave is good
        if case.query and any(name in str(case.query.get("format")) for name in ("vercel", "ag-ui")):
            case.query.pop("format")  # a stream has no end; tests/server/test_formats.py reads them
        # Where the headers are what is wrong, the token is missing: to add it would make the request right.
        wrong = {str(place) for place, part in case.meta.components.items() if part.mode.is_negative}
        headers = {} if "header" in wrong else {"Authorization": "Bearer hf_test"}
        case.call_and_validate(timeout=10, headers=headers)

    attack()


def test_the_document_is_complete(server: _Server):
    document = load_document(server)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["description"], (method, path)
            assert operation["x-rule"], (method, path)
            assert any(status.startswith("2") for status in operation["responses"]), (method, path)
            if operation["x-rule"] != "public":
                assert operation["security"] == [{"bearer": []}], (method, path)
                assert {"401", "422"} <= set(operation["responses"]), (method, path)


def load_document(server: _Server) -> Any:
    import httpx2

    return httpx2.get(f"{server.url}/openapi.json").json()
