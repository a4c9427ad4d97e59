"""Example bodies of routes, from the OpenAPI document. They are declared with the models of the bodies."""

from typing import Any

ADVICE = (
    "Add an example to the model of the body of {}: "
    '`model_config = ConfigDict(json_schema_extra={{"examples": [{{…}}]}})`. Then run `make generate`.'
)


def example_bodies(app: Any) -> dict[tuple[str, str], Any]:
    """Return an example body for each route that reads JSON, by method and path."""
    document = app.openapi()
    schemas = document["components"]["schemas"]
    bodies: dict[tuple[str, str], Any] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            if "application/json" in content:
                schema = content["application/json"]["schema"]
                key = method.upper(), path
                bodies[key] = _example(schema, schemas, ADVICE.format(" ".join(key)))
    return bodies


def _example(schema: dict[str, Any], schemas: dict[str, Any], advice: str) -> Any:
    """Return the example of a schema, or of its first form."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    forms = schema.get("oneOf") or schema.get("anyOf")
    if forms:
        return _example(forms[0], schemas, advice)
    assert schema.get("examples"), advice
    return schema["examples"][0]
