"""What was sent to a model besides the history: the profile of each request, and the messages that hooks changed.

A profile is the model, its settings, the tools with their schemas, and the output. It is stored once, as media in the database, for all
sessions with the same one. The instructions are not part of it: each request message of the history has its own.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import ModelRequestContext, ModelRequestParameters
from pydantic_ai.native_tools import AbstractNativeTool, MCPServerTool
from pydantic_ai.tools import ToolDefinition
from pydantic_core import PydanticSerializationError, to_json

from holdfast.record.history import dump

_SECRET_SETTINGS: Final = frozenset({"extra_headers", "extra_body"})
_MCP_FIELDS: Final = ("kind", "id", "description", "allowed_tools")
"""The fields of an MCP server that are recorded. Its URL, token and headers may be secret, and so may the fields of unknown tools."""
_log = logging.getLogger(__name__)


class Profiles:
    """Describes the requests of one run. `hold` keeps the text of a new profile until it is stored."""

    def __init__(self, hold: Callable[[str, bytes], None]) -> None:
        self._hold = hold
        self._last: bytes | None = None
        self._own: dict[
            str, int
        ] = {}  # the texts of messages that were sent and are not in the history, with their numbers

    def facts(self, sent: ModelRequestContext, history: Sequence[ModelMessage]) -> Mapping[str, Any]:
        """Return the facts for the event of a response: the profile if it changed, and which messages were sent if not the history.

        `sent` is the request of the last attempt, as the hooks left it.
        """
        facts: dict[str, Any] = {}
        text = profile_of(sent)
        if text is not None and text != self._last:
            self._last = text
            digest = hashlib.sha256(text).hexdigest()
            self._hold(digest, text)
            facts["profile"] = digest
        if not _is_same(sent.messages, history):
            facts |= self._difference(sent.messages, history)
        return facts

    def _difference(self, sent: Sequence[ModelMessage], history: Sequence[ModelMessage]) -> Mapping[str, Any]:
        """Describe messages as ranges of the history, and numbers of the run's own messages. `added` are those without a number yet."""
        places = {id(message): place for place, message in enumerate(history)}
        items: list[int | list[int]] = []
        added: list[Any] = []
        for message in sent:
            last = items[-1] if items else None
            following = last[1] if isinstance(last, list) else 0
            place = places.get(id(message))
            if place is None and following < len(history) and _is_same([message], [history[following]]):
                place = following
            if place is None:
                items.append(self._number(message, added))
            elif isinstance(last, list) and place == following:
                last[1] += 1
            else:
                items.append([place, place + 1])
        if items == [[0, len(history)]]:
            return {}
        return {"sent": items, "added": added} if added else {"sent": items}

    def _number(self, message: ModelMessage, added: list[Any]) -> int:
        text = dump(message)
        if text not in self._own:
            self._own[text] = len(self._own)
            added.append(json.loads(text))
        return self._own[text]


def _is_same(sent: Sequence[ModelMessage], history: Sequence[ModelMessage]) -> bool:
    try:
        return sent == history
    except Exception:  # noqa: BLE001 - comparing the values of a tool may raise; then they do not count as equal
        return False


def profile_of(sent: ModelRequestContext) -> bytes | None:
    """Return the profile of a request as JSON; None if it cannot be written as JSON."""
    settings = {
        key: value for key, value in (sent.model_settings or {}).items() if key not in _SECRET_SETTINGS
    }
    profile = {
        "model": sent.model.model_name,
        "provider": sent.model.system,
        "settings": settings,
        **_parameters(sent.model_request_parameters),
    }
    try:
        return to_json(profile, fallback=_note, inf_nan_mode="strings")
    except (ValueError, PydanticSerializationError, RecursionError) as error:
        _log.warning("the profile of a model request was not recorded: %s", type(error).__name__)
        return None


def _parameters(parameters: ModelRequestParameters) -> Mapping[str, Any]:
    output = parameters.output_object
    found: dict[str, Any] = {
        "tools": [_tool(tool) for tool in parameters.function_tools],
        "native_tools": [_native_tool(tool) for tool in parameters.native_tools],
        "output": {
            "mode": parameters.output_mode,
            "tools": [_tool(tool) for tool in parameters.output_tools],
            "schema": output and asdict(output),
            "text": parameters.allow_text_output,
            "image": parameters.allow_image_output,
        },
    }
    return found


def _tool(tool: ToolDefinition) -> Mapping[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters_json_schema,
        "strict": tool.strict,
        "kind": tool.kind,
    }


def _native_tool(tool: AbstractNativeTool) -> Mapping[str, Any]:
    if not type(tool).__module__.startswith("pydantic_ai."):
        return {"kind": tool.kind}
    fields = asdict(tool)
    return {name: fields[name] for name in _MCP_FIELDS} if isinstance(tool, MCPServerTool) else fields


def _note(value: Any) -> str:
    return f"<not serializable: {type(value).__module__}.{type(value).__qualname__}>"
