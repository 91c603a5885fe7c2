"""The JSON Schema of the admin port, as an OpenAPI 3.1 document, and its page in the documentation."""

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
    """Requires every field of an answer, for the server writes all; of a request, the fields without a default."""

    def field_is_required(self, field: _Field, total: bool) -> bool:
        return self.mode == "serialization" or super().field_is_required(field, total)

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's signature
        """Never: a title would only repeat the name."""
        return False


def api_schema() -> dict[str, Any]:
    """An OpenAPI document: the paths, and under ``components.schemas`` a JSON Schema (2020-12) for each type."""
    schemas = _schemas()
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Switchgear admin API",
            "version": "v1",
            "description": "Clients ignore unknown fields: newer servers add some.",
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _types() -> Iterator[tuple[type[Any], JsonSchemaMode]]:
    """Every type that an endpoint names, with the direction it travels in."""
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
    """The schema with the docstring of its class as one line."""
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
        # OpenAPI 3.1 has no schema for a stream of events: each name stands beside the type of its data.
        events = {name: _ref(kind) for name, kind in endpoint.messages}
        return {endpoint.media_type: {"schema": {"type": "string"}, "x-events": events}}
    return {endpoint.media_type: {"schema": _ref(endpoint.answer)}}


def _ref(kind: type[Any]) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"} if is_dataclass(kind) else {"type": "string"}


def _first_line(kind: type[Any]) -> str:
    return (kind.__doc__ or "").partition("\n")[0]


_HEAD: Final = """<!-- Made by `make generated` from xds_server/admin_api; edit that. -->
# Admin API

The admin port (`switchgear serve --admin`) answers these requests. Answers are JSON unless the table says
otherwise. `switchgear schema --api` prints the same as an OpenAPI 3.1 document, with a JSON Schema for each type.

- **Compatibility.** A server adds fields and endpoints within `/v1`; it neither renames nor removes any. Ignore
  fields that you do not know. A server that is older lacks some fields, and answers 404 to newer paths.
- **Access.** [Security](security.md#the-admin-port) says who may read and who may write. `/healthz` and `/readyz`
  are open to probes. A request that changes something must not come from a page in a browser.
- **Refusals.** A refused request is answered with status 4xx and `{"error": "..."}` (type `Refusal`), unless the
  table of the endpoint names another type.
- **Units.** Names end in the unit: `_s` is seconds, `_unix_s` a Unix time, `_percent` 0 to 100, `_bytes` bytes.
  Ages are seconds at the moment of the answer. `null` means unknown, or that it does not apply.

"""


def api_markdown() -> str:
    """The page ``docs/admin-api.md``."""
    return _HEAD + "\n".join([*_endpoint_lines(), "", *_type_lines(_schemas())]) + "\n"


def _endpoint_lines() -> Iterator[str]:
    yield "## Endpoints\n"
    yield "| request | what | parameters | answer |"
    yield "|---|---|---|---|"
    for one in ENDPOINTS:
        names = ", ".join(f"`{each.name}`" for each in one.parameters)
        body = "" if one.request is None else f"body {_link(one.request.__name__)}"
        taken = "; ".join(filter(None, (names, body)))
        yield f"| `{one.method} {one.path}` | {one.text} | {taken} | {_answers(one)} |"
    yield "\n## Parameters\n"
    yield "| request | parameter | what |"
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
    yield "A field with a default may be missing from a request, and from the answer of an older server.\n"
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
