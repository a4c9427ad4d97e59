"""Write the types of the TypeScript client from the OpenAPI document of the server. Run it after a change; a test compares them."""

import json
from pathlib import Path
from typing import Any

from holdfast.config import load_settings
from holdfast.errors import HoldfastError
from holdfast.events import DraftText
from holdfast.server.app import create_app
from holdfast.shell import ShellService
from holdfast.store import open_store

TARGET = Path(__file__).parent.parent / "clients" / "typescript" / "src" / "models.ts"
_HEAD = "// Written by scripts/make_typescript.py from the OpenAPI document of the server. Do not edit.\n"


def text() -> str:
    """Return the module."""
    store = open_store("sqlite://:memory:")
    document = create_app(load_settings(), store, shell=ShellService(store)).openapi()
    schemas: dict[str, Any] = document["components"]["schemas"] | {"DraftText": DraftText.model_json_schema()}
    submit = document["paths"]["/api/sessions/{session_id}/submissions"]["post"]["requestBody"]
    schemas["NewSubmission"] = submit["content"]["application/json"]["schema"]
    models = [_declaration(_name(name), schema) for name, schema in sorted(schemas.items())]
    codes = " | ".join(json.dumps(code) for code in _codes())
    return "\n".join(
        [
            _HEAD,
            *models,
            f"/** The codes of the errors. A newer server may have others. */\nexport type ErrorCode = {codes};\n",
        ]
    )


def _codes() -> list[str]:
    kinds: list[type[HoldfastError]] = [HoldfastError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    return sorted({kind.code for kind in kinds if kind.__module__ == HoldfastError.__module__})


def _declaration(name: str, schema: dict[str, Any]) -> str:
    comment = _comment(schema, "")
    if "properties" not in schema:
        return f"{comment}export type {name} = {_type(schema)};\n"
    required = set(schema.get("required", ()))
    lines = [f"{comment}export interface {name} {{"]
    for field, kind in schema["properties"].items():
        optional = "" if field in required else "?"
        lines.append(f"{_comment(kind, '  ')}  {field}{optional}: {_type(kind)};")
    return "\n".join([*lines, "}\n"])


def _comment(schema: dict[str, Any], indent: str) -> str:
    described = " ".join(str(schema.get("description", "")).split()).replace("*/", "* /")
    return f"{indent}/** {described} */\n" if described else ""


def _name(name: str) -> str:
    """Return the name of a schema as an identifier: `Items_SessionInfo_` is `SessionInfoItems`."""
    return f"{name[6:-1]}Items" if name.startswith("Items_") else name


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return _name(schema["$ref"].rpartition("/")[2])
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " | ".join(dict.fromkeys(map(_type, schema[several])))
    match schema.get("type"):
        case "string":
            return "string"
        case "integer" | "number":
            return "number"
        case "boolean":
            return "boolean"
        case "null":
            return "null"
        case "array":
            return f"Array<{_type(schema.get('items', {}))}>"
        case "object":
            values = schema.get("additionalProperties", True)
            return f"Record<string, {'unknown' if isinstance(values, bool) else _type(values)}>"
        case _:
            return "unknown"


if __name__ == "__main__":
    TARGET.write_text(text())
