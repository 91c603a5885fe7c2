"""JSON Schema of the admin port as an OpenAPI 3.1 document, and its documentation page."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from pydantic_core import core_schema

from xds_server.admin_api.endpoints import ENDPOINTS, JSON, REFUSAL, AdminEndpoint, Parameter
from xds_server.admin_api.parse import adapter

_Field = core_schema.ModelField | core_schema.DataclassField | core_schema.TypedDictField


class _AnswerSchema(GenerateJsonSchema):
    """All fields of an answer are required, since the server writes all; of a request, those without default."""

    def field_is_required(self, field: _Field, total: bool) -> bool:
        return self.mode == "serialization" or super().field_is_required(field, total)

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's signature
        """Never: titles would repeat the field names."""
        return False


def api_schema() -> dict[str, Any]:
    """OpenAPI document: the paths, and a JSON Schema (2020-12) per type under ``components.schemas``."""
    schemas = _schemas()
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Switchgear admin API",
            "version": "v1",
            "description": "Clients must ignore unknown fields; newer servers add fields.",
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _types() -> Iterator[tuple[type[Any], JsonSchemaMode]]:
    """Types named by endpoints, each with its direction."""
    yield REFUSAL, "serialization"
    for endpoint in ENDPOINTS:
        if endpoint.request is not None:
            yield endpoint.request, "validation"
        answers = (endpoint.answer, *(kind for _, kind in (*endpoint.messages, *endpoint.refusals)))
        yield from ((kind, "serialization") for kind in answers if is_dataclass(kind))


def _schemas() -> dict[str, Any]:
    kinds = {(kind.__name__, mode): (kind.__name__, mode, adapter(kind)) for kind, mode in _types()}
    _, document = TypeAdapter.json_schemas(
        list(kinds.values()), ref_template="#/components/schemas/{model}", schema_generator=_AnswerSchema
    )
    schemas: dict[str, dict[str, Any]] = document["$defs"]
    return {name: _one_line(schema) for name, schema in sorted(schemas.items())}


def _one_line(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its class docstring as one line."""
    return schema | {"description": " ".join(str(schema["description"]).split())}


def _operation(endpoint: AdminEndpoint[Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": endpoint.text}
    if endpoint.parameters:
        operation["parameters"] = [_parameter(one, endpoint.path) for one in endpoint.parameters]
    if endpoint.request is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": _ref(endpoint.request)}}}
    responses: dict[str, Any] = {str(endpoint.status): {"description": "Success.", "content": _content(endpoint)}}
    for status, kind in endpoint.refusals:
        responses[str(status)] = {"description": _first_line(kind), "content": {JSON: {"schema": _ref(kind)}}}
    responses["default"] = {"description": _first_line(REFUSAL), "content": {JSON: {"schema": _ref(REFUSAL)}}}
    return {**operation, "responses": responses}


def _parameter(one: Parameter, path: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    return {
        "name": one.name,
        "in": "path" if f"{{{one.name}}}" in path else "query",
        "required": one.required,
        "description": one.text,
        "schema": {"type": "array", "items": schema} if one.repeated else schema,
    }


def _content(endpoint: AdminEndpoint[Any]) -> dict[str, Any]:
    if endpoint.messages:
        # OpenAPI 3.1 has no schema for event streams: list the data type of each event name.
        events = {name: _ref(kind) for name, kind in endpoint.messages}
        return {endpoint.media_type: {"schema": {"type": "string"}, "x-events": events}}
    return {endpoint.media_type: {"schema": _ref(endpoint.answer)}}


def _ref(kind: type[Any]) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"} if is_dataclass(kind) else {"type": "string"}


def _first_line(kind: type[Any]) -> str:
    return (kind.__doc__ or "").partition("\n")[0]


_HEAD: Final = """<!-- Generated from xds_server/admin_api by `make generated`; do not edit. -->
# Admin API

The admin port (`switchgear serve --admin`) answers these requests, in JSON unless the table says otherwise.
`switchgear schema --api` prints the same as an OpenAPI 3.1 document, with a JSON Schema for each type.

- **Compatibility.** Within `/v1` a server adds fields and endpoints; it never renames or removes them. Ignore
  unknown fields. An older server lacks some fields, and answers newer paths with 404.
- **Access.** [Security](security.md#the-admin-port) defines who may read and write. `/healthz` and `/readyz`
  are open to probes. Requests that make changes must not come from a web page.
- **Refusals.** A refused request gets status 4xx and `{"error": "..."}` (type `Refusal`), unless the
  endpoint's table names another type.
- **Units.** Names end in the unit: `_s` is seconds, `_unix_s` a Unix time, `_percent` 0 to 100, `_bytes` bytes.
  Ages are seconds at the moment of the answer. `null` means unknown or not applicable.

"""


def api_markdown() -> str:
    """Text of ``docs/admin-api.md``."""
    return _HEAD + "\n".join([*_endpoint_lines(), "", *_type_lines(_schemas())]) + "\n"


def _endpoint_lines() -> Iterator[str]:
    yield "## Endpoints\n"
    yield "| request | description | parameters | answer |"
    yield "|---|---|---|---|"
    for one in ENDPOINTS:
        names = ", ".join(f"`{each.name}`" for each in one.parameters)
        body = "" if one.request is None else f"body {_link(one.request.__name__)}"
        taken = "; ".join(filter(None, (names, body)))
        yield f"| `{one.method} {one.path}` | {one.text} | {taken} | {_answers(one)} |"
    yield "\n## Parameters\n"
    yield "| request | parameter | description |"
    yield "|---|---|---|"
    for one in ENDPOINTS:
        for each in one.parameters:
            notes = [*(["required"] if each.required else []), *(["may be repeated"] if each.repeated else [])]
            note = f" ({', '.join(notes)})" if notes else ""
            yield f"| `{one.method} {one.path}` | `{each.name}` | {each.text}{note} |"


def _answers(one: AdminEndpoint[Any]) -> str:
    if one.messages:
        good = ", ".join(f"`event: {name}` {_link(kind.__name__)}" for name, kind in one.messages)
    else:
        good = _link(one.answer.__name__) if is_dataclass(one.answer) else f"`{one.media_type}`"
    other = ", ".join(f"{status}: {_link(kind.__name__)}" for status, kind in one.refusals)
    return f"{one.status}: {good}" + (f"; {other}" if other else "")


def _type_lines(schemas: Mapping[str, Any]) -> Iterator[str]:
    yield "## Types\n"
    yield "Fields with a default may be missing in requests, and in answers of an older server.\n"
    for name, schema in schemas.items():
        yield f"### {name}\n"
        yield f"{schema['description']}\n"
        if "enum" in schema:
            yield f"One of {', '.join(f'`{one}`' for one in schema['enum'])}.\n"
            continue
        yield "| field | type | default |"
        yield "|---|---|---|"
        for field, of in schema["properties"].items():
            default = f"`{json.dumps(of['default'])}`" if "default" in of else ""
            yield f"| `{field}` | {_type_name(of)} | {default} |"
        yield ""


def _type_name(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(map(_type_name, schema["anyOf"]))
    if "$ref" in schema:
        return _link(str(schema["$ref"]).rpartition("/")[2])
    if schema.get("type") == "array":
        return f"list of {_type_name(schema['items'])}"
    if schema.get("type") == "object":
        of = schema.get("additionalProperties", True)
        return "object" if isinstance(of, bool) else f"map of {_type_name(of)}"
    return str(schema.get("type", "any"))


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"
