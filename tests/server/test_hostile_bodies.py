"""Every route that reads JSON refuses a large hostile body after a bounded amount of work."""

import copy
from collections.abc import AsyncGenerator, Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from holdfast import Store
from holdfast.config import load_settings
from holdfast.server import create_app
from holdfast.server.auth import digest
from holdfast.shell import ShellService
from tests.server.examples import example_bodies

MANY = 1200
MOST_ERRORS = 200
"""An object of a body may have some unknown fields, and each of them is an error."""
_FILE: dict[str, Any] = {
    "type": "file",
    "mediaType": "image/png",
    "url": "https://example.com/a.png",
    "providerMetadata": {"pydantic_ai": {"vendor_metadata": {"detail": "low"}}},
}
_CALL: dict[str, Any] = {
    "type": "tool-pay",
    "toolCallId": "c",
    "state": "approval-responded",
    "input": {},
    "approval": {"id": "a", "approved": True},
}
_SOURCE = {"type": "url", "value": "https://example.com/a.png", "mimeType": "image/png"}
NESTED: dict[tuple[str, str], list[Any]] = {
    ("POST", "/api/sessions"): [{"agent": "agent", "metadata": {"attached": {"grace": 5}}}],
    ("POST", "/api/sessions/{session_id}/submissions"): [
        {"content": ["a", {"kind": "image-url", "url": "https://example.com", "vendor_metadata": {"a": 1}}]}
    ],
    ("POST", "/api/chat"): [
        {"id": "s1", "messages": [{"id": "m", "role": "user", "parts": [_FILE]}]},
        {"id": "s1", "messages": [{"id": "m", "role": "assistant", "parts": [_CALL]}]},
    ],
    ("POST", "/api/ag-ui"): [
        {
            "threadId": "s1",
            "runId": "r",
            "messages": [{"id": "m", "role": role, "content": [{"type": "image", "source": _SOURCE}]}],
        }
        for role in ("user", "assistant", "tool")
    ]
    + [
        {
            "threadId": "s1",
            "runId": "r",
            "resume": [{"interruptId": "int-c", "status": "resolved", "payload": {"approved": True}}],
        }
    ],
    ("GET", "/api/bash/bash_events/"): [["0" * 32]],
}
"""Bodies of routes that read more than the document of the API describes."""


_FIELDS: dict[str, Any] = {f"k{number}": 0 for number in range(MANY)}
HOSTILE: tuple[Any, ...] = (
    [0] * MANY,
    [dict[str, Any]()] * MANY,
    [{"type": "text"}] * MANY,
    [{"type": "tool-x", "state": "output-error"}] * MANY,
    _FIELDS,
    [_FIELDS],
    [{"type": "text", "text": "", "providerMetadata": _FIELDS}],
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a body."""
    yield path
    if isinstance(value, dict):
        for key, inner in cast("dict[str, Any]", value).items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(cast("list[Any]", value)):
            yield from places(inner, (*path, index))


def replaced(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a body with another value at a path. An object keeps its fields and gets those of the value."""
    if path:
        changed = copy.copy(body)
        has = isinstance(path[0], int) or path[0] in body
        changed[path[0]] = replaced(body[path[0]], path[1:], value) if has else value
        return changed
    if isinstance(body, dict) and isinstance(value, dict):
        return cast("dict[str, Any]", body) | cast("dict[str, Any]", value)
    return value


def samples(app: Any) -> Iterator[tuple[str, str, Any, list[tuple[Any, ...]]]]:
    """Yield each route that reads JSON with a valid body, and the places in it, also of fields that it does not have."""
    document, examples = app.openapi(), example_bodies(app)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            key = method.upper(), path
            content = operation.get("requestBody", {}).get("content", {})
            bodies = [*([examples[key]] if key in examples else []), *NESTED.get(key, [])]
            fields = set[str]()
            if "application/json" in content:
                fields |= set(
                    _fields(content["application/json"]["schema"], document["components"]["schemas"])
                )
                bodies = bodies or [{}]
            for body in bodies:
                yield *key, body, [*places(body), *((field,) for field in fields - set(body))]


def _fields(schema: dict[str, Any], schemas: dict[str, Any]) -> Iterator[str]:
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    yield from schema.get("properties", {})
    for inner in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _fields(inner, schemas)


@pytest.fixture
async def hostile_http(store: Store, tmp_path: Path) -> AsyncGenerator[tuple[Any, httpx2.AsyncClient], None]:
    async with ShellService(store, cwd=tmp_path) as shell:
        app = create_app(load_settings(), store, ["agent"], shell=shell)
        await store.add_token(digest("hf_root"), owner="root", role="admin", scopes=["shell"])
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app, raise_app_exceptions=False),
            base_url="http://test",
            headers={"authorization": "Bearer hf_root"},
        ) as client:
            yield app, client


@pytest.fixture
def errors_built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of errors in each failed validation."""
    built: list[int] = []

    def counting(validate: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **options: Any) -> Any:
            try:
                return validate(*given, **options)
            except ValidationError as error:
                built.append(error.error_count())
                raise

        return counted

    for name in ("validate_python", "validate_json"):
        monkeypatch.setattr(TypeAdapter, name, counting(getattr(TypeAdapter, name)))
    for name in ("model_validate", "model_validate_json"):
        inner = getattr(BaseModel, name).__func__
        monkeypatch.setattr(BaseModel, name, classmethod(counting(inner)))
    return built


async def test_no_route_builds_an_error_for_each_part_of_a_hostile_body(
    hostile_http: tuple[Any, httpx2.AsyncClient], store: Store, errors_built: list[int]
):
    app, http = hostile_http
    await store.create_session(agent="agent", owner="root", id="own")
    # A chat with this session is refused after its body was read, so that no response is a stream without an end.
    await store.create_session(agent="adk", owner="root", id="s1", metadata='{"framework": "adk"}')
    given = ("session_id", "run_id", "consumer", "call_id", "submission_id", "name", "schedule_id")
    names = dict.fromkeys((*given, "subscription_id", "delivery_id"), "own")
    tried = set[tuple[str, str]]()
    for method, template, body, within in samples(app):
        tried.add((method, template))
        for place, value in product(within, HOSTILE):
            errors_built.clear()
            answer = await http.request(
                method, template.format(**names), json=replaced(body, place, value), timeout=60
            )
            assert answer.status_code != 500, (method, template, place, answer.text)
            assert max(errors_built, default=0) <= MOST_ERRORS, (method, template, place, str(value)[:60])
    assert len(tried) > 15
    assert set(NESTED) <= tried


async def test_a_chat_with_thousands_of_bad_parts_is_refused_at_once(
    hostile_http: tuple[Any, httpx2.AsyncClient], errors_built: list[int]
):
    _, http = hostile_http
    message: dict[str, Any] = {"id": "m", "role": "user", "parts": [{"type": "x"}] * 12_005}
    answer = await http.post("/api/chat", json={"id": "c", "messages": [message]})
    assert answer.status_code == 422
    assert "at most 1000 parts" in answer.json()["error"]["message"]
    message["parts"] = [{"type": "text", "text": "a"}, {"type": "text"}, {"type": "x"}]
    answer = await http.post("/api/chat", json={"id": "c", "messages": [message]})
    assert "parts.1.text" in answer.json()["error"]["message"]
    assert max(errors_built, default=0) == 1
