"""The keys that the document of the API names are those that the server accepts and sends."""

import re
from collections.abc import Iterator
from typing import Any, cast

import httpx2

from holdfast import Store
from holdfast.config import Settings
from holdfast.media import open_media
from holdfast.runtime.attachment import Attachment
from holdfast.types import SCOPES, Batch, Record
from tests.promises.sessions import fill

OTHERS = {
    "true",
    "model",
    "attached",
    "editable",
    "forked",
    "holdfast_store_up",
    "link",
    "now",
    "size",
    "until",
    "worker",
}
"""Words of other places: JSON, keys of metadata, an event, a metric, a header, an offset, facts of errors, a reason to wait."""


def schemas(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in a document."""
    if isinstance(value, dict):
        yield cast("dict[str, Any]", value)
        for inner in cast("dict[str, Any]", value).values():
            yield from schemas(inner)
    elif isinstance(value, list):
        for inner in cast("list[Any]", value):
            yield from schemas(inner)


def known_words(document: dict[str, Any]) -> set[str]:
    """Return the names of all properties and parameters, and all values of enumerations."""
    words = OTHERS | set(Settings.model_fields) | set(SCOPES)
    for schema in [*schemas(document), *schemas(Attachment.model_json_schema())]:
        words |= set(schema["properties"]) if isinstance(schema.get("properties"), dict) else set()
        words |= {str(value) for value in schema.get("enum", ()) if isinstance(schema.get("enum"), list)}
        words |= {str(schema["const"])} if "const" in schema else set()
        words |= {schema["name"]} if "in" in schema and isinstance(schema.get("name"), str) else set()
    return words


def test_descriptions_name_only_keys_and_values_that_exist(app: Any):
    document = app.openapi()
    known = known_words(document)
    unknown = {
        (word, schema["description"])
        for schema in schemas(document)
        if isinstance(schema.get("description"), str)
        for word in re.findall(r"`([a-z_]+)`", schema["description"])
        if word not in known
    }
    assert sorted({word for word, _ in unknown}) == []


SOMETIMES = {"ErrorBody", "Health", "Inbox", "InboxItem", "ApprovalRequest", "UnsettledCall", "BashPage"}
"""Bodies of errors and of states in which the session of this test is not."""


async def test_the_server_sends_every_key_that_is_documented(
    app: Any, http: httpx2.AsyncClient, store: Store, tokens: dict[str, str]
):
    http.headers["authorization"] = f"Bearer {tokens['admin']}"
    session_id = await fill(store, open_media(store=store), ["hello"])
    await store.submit(session_id, "message", '{"text": "hi"}')
    await store.join("worker")
    lease = await store.acquire(session_id, await store.join("writer"))
    await store.write(lease, Batch(records=[Record(kind="item", key="k", body="{}")]))
    await store.release(lease)
    names = {
        "session_id": session_id,
        "run_id": (await store.runs(session_id=session_id)).items[0].id,
        "command_id": (await store.commands(session_id=session_id)).items[0].id,
        "submission_id": (await store.submissions(session_id)).items[0].id,
    }
    document = app.openapi()
    models: dict[str, Any] = document["components"]["schemas"]
    keys: dict[str, set[str]] = {}
    for path, methods in document["paths"].items():
        operation = methods.get("get", {})
        schema = operation.get("responses", {}).get("200", {}).get("content", {}).get("application/json", {})
        if (
            not schema
            or "/bash/" in path
            or "/api/chat" in path
            or not set(re.findall(r"{(\w+)}", path)) <= names.keys()
        ):
            continue
        query = {"kind": "item"} if path.endswith("/records") else {}
        answer = await http.get(path.format(**names), params=query)
        assert answer.status_code == 200, (path, answer.text)
        if answer.headers["content-type"] != "application/json":
            continue
        for name, value in sent(schema.get("schema", {}), answer.json(), models):
            keys.setdefault(name, set()).update(value)
    missing = {name: set(models[name].get("properties", {})) - keys[name] for name in keys.keys() - SOMETIMES}
    assert {name: unsent for name, unsent in missing.items() if unsent} == {}
    assert {"SessionDetail", "RunInfo", "EventInfo", "HistoryMessage", "RecordInfo", "AgentState"} <= set(
        keys
    )


def sent(schema: dict[str, Any], value: Any, models: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects in a response with the names of their models."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if isinstance(value, dict):
            yield name, cast("dict[str, Any]", value)
        schema = models[name]
    if isinstance(value, dict):
        for key, inner in cast("dict[str, Any]", value).items():
            yield from sent(schema.get("properties", {}).get(key, {}), inner, models)
    for inner in cast("list[Any]", value) if isinstance(value, list) else ():
        yield from sent(schema.get("items", {}), inner, models)
