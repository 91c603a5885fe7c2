"""JSON Schema of policy documents, and the documentation of every field, both read off the models.

``fields`` is what ``explain``, the defaults file, the reference and the loader's error messages share: whatever a
field's description or limit says, it says it everywhere.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from policies.document import API_VERSION
from policies.model import KINDS
from policies.origin import Step
from policies.quantity import DURATION_PATTERN, ENGINE_NAME_PATTERN, NAME_PATTERN, ZONE_PATTERN, format_duration

Schema: TypeAlias = dict[str, Any]

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_NAMES: Final = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "object": "block",
    "array": "list",
}

_PATTERNS: Final = {
    NAME_PATTERN: "a name: lower-case letters, digits and dashes, at most 63",
    ENGINE_NAME_PATTERN: "a name: letters, digits and - _ . :",
    ZONE_PATTERN: "a name: letters, digits and - _ .",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldDoc:
    """What there is to know about one field.

    ``path`` is as in YAML with ``[]`` for the items of a list (``spec.endpoints[].port``). ``default`` is the
    value as JSON would hold it (durations as text); meaningless where ``required`` or ``block``.
    """

    path: str
    type: str
    allowed: str
    description: str
    default: Any
    required: bool
    block: bool
    unit: str = ""
    why: str = ""


def json_schema(kind: str | None = None) -> Schema:
    """JSON Schema (draft 2020-12) of documents of one kind, or of all kinds, told apart by ``kind``."""
    if kind is not None:
        return {"$schema": _DIALECT, **_of_kind(kind)}
    definitions: Schema = {}
    for name in KINDS:
        schema = _of_kind(name)
        definitions |= schema.pop("$defs")
        definitions[name] = schema
    return {
        "$schema": _DIALECT,
        "title": "Switchgear policy document",
        "type": "object",
        "required": ["apiVersion", "kind", "metadata"],
        "properties": {"kind": {"enum": list(KINDS)}},
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in KINDS],
        "$defs": definitions,
    }


@cache
def fields(kind: str) -> Mapping[str, FieldDoc]:
    """Every field of a kind by its path, depth first in the order of the models."""
    schema = _of_kind(kind)
    return MappingProxyType({one.path: one for one in _walk(schema, schema["$defs"], "")})


def generic(steps: tuple[Step, ...]) -> str:
    """The path of a field in ``fields``: ``spec.endpoints[].port`` for the port of any endpoint."""
    return "".join("[]" if isinstance(step, int) else f".{step}" for step in steps).lstrip(".")


def field_at(kind: str, steps: tuple[Step, ...]) -> FieldDoc | None:
    """What there is to know about the field at these steps; an item of a plain list stands for its list."""
    known = fields(kind)
    path = generic(steps)
    return known.get(path) or known.get(path.removesuffix("[]"))


def names_at(kind: str, steps: tuple[Step, ...]) -> tuple[str, ...]:
    """Names of the fields that may stand in the block at these steps."""
    path = generic(steps)
    prefix = f"{path}." if path else ""
    inner = (one.removeprefix(prefix) for one in fields(kind) if one.startswith(prefix))
    return tuple(name for name in inner if "." not in name and "[" not in name)


def _of_kind(kind: str) -> Schema:
    schema: Schema = _editable(KINDS[kind].model_json_schema(by_alias=True))
    schema["properties"]["apiVersion"] = {
        "const": API_VERSION,
        "type": "string",
        "description": "Version of the document.",
    }
    schema["properties"]["kind"] = {"const": kind, "type": "string", "description": "Kind of the document."}
    required = set(schema.get("required", ())) | {"apiVersion", "kind"}
    schema["required"] = [name for name in schema["properties"] if name in required]
    schema["title"] = kind
    return schema


def _editable(node: Any) -> Any:
    """Pydantic's schema as an editor wants it: no titles made of field names, defaults as they are written."""
    if isinstance(node, list):
        return [_editable(one) for one in node]
    if not isinstance(node, dict):
        return node
    dropped = {"title", "le", "ge", "gt", "lt"}  # the bounds that pydantic leaves behind on durations
    # Below `properties` the keys are names of fields, not words of JSON Schema.
    result: Schema = {
        key: {name: _editable(one) for name, one in value.items()}
        if key in {"properties", "$defs"}
        else _editable(value)
        for key, value in node.items()
        if key not in dropped
    }
    if result.get("x-unit") == "duration" and isinstance(result.get("default"), (int, float)):
        result["default"] = format_duration(result["default"])
    return result


def _walk(block: Schema, definitions: Schema, prefix: str, defaults: Schema | None = None) -> Iterator[FieldDoc]:
    """Fields of a block; ``defaults`` are those its owner gives it in place of its own."""
    required = set(block.get("required", ()))
    for name, said in block["properties"].items():
        path = f"{prefix}.{name}" if prefix else name
        shape = _shape(said, definitions)
        nested = shape if "properties" in shape else None
        items = _shape(shape["items"], definitions) if "items" in shape else {}
        yield FieldDoc(
            path=path,
            type=_type(shape, definitions),
            allowed=said.get("x-allowed") or _allowed(shape, definitions),
            description=said.get("description") or shape.get("description", ""),
            default=(defaults or {}).get(name, said.get("default")),
            required=name in required,
            block=nested is not None,
            unit=said.get("x-unit", ""),
            why=said.get("x-why", ""),
        )
        if nested is not None:
            yield from _walk(nested, definitions, path, said.get("default"))
        elif "properties" in items:
            yield from _walk(items, definitions, f"{path}[]")


def _shape(said: Schema, definitions: Schema) -> Schema:
    """The schema itself, behind a reference or beside ``null``."""
    for option in said.get("anyOf", ()):
        if option.get("type") != "null":
            return _shape(option, definitions)
    if "$ref" in said:
        found: Schema = definitions[said["$ref"].rpartition("/")[2]]
        return found
    return said


def _type(shape: Schema, definitions: Schema) -> str:
    if shape.get("pattern") == DURATION_PATTERN:
        return "duration"
    if shape.get("type") == "array":
        inner = _type(_shape(shape["items"], definitions), definitions)
        return f"list of {inner}s" if inner == "block" else f"list of {inner}"
    if isinstance(shape.get("additionalProperties"), dict):
        return "names with text"
    return _NAMES[shape.get("type", "string")]


def _allowed(shape: Schema, definitions: Schema) -> str:  # noqa: PLR0911 - one line per kind of value
    """What values a field takes, in words."""
    if "const" in shape:
        return str(shape["const"])
    if "enum" in shape:
        return "one of " + ", ".join(map(str, shape["enum"]))
    kind = _type(shape, definitions)
    if shape.get("type") == "array":
        items = _allowed(_shape(shape["items"], definitions), definitions)
        return f"a list, each {items}" if not items.startswith("a block") else "a list of blocks"
    if kind == "duration":
        return "a duration, such as 250ms, 2s or 15m"
    if "maximum" in shape or "minimum" in shape or "exclusiveMinimum" in shape:
        low = f"more than {shape['exclusiveMinimum']:g}" if "exclusiveMinimum" in shape else f"{shape['minimum']}"
        return f"a {kind}, {low} to {shape['maximum']}" if "maximum" in shape else f"a {kind}, at least {low}"
    if "pattern" in shape:
        return _PATTERNS.get(shape["pattern"], f"text that matches {shape['pattern']}")
    return {"true or false": "true or false", "block": "a block of fields", "text": "text"}.get(kind, f"{kind}")
