"""JSON Schema of policy documents, and the documentation of every field, both read off the models.

``fields`` is what ``explain``, the defaults file, the reference and the loader's error messages share: whatever a
field's description or limit says, it says it everywhere. ``document_schema`` and ``fields_of`` serve others than
policies, too.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Final, TypeAlias, get_args, get_origin

from policies.document import API_VERSIONS, Spec, declaration
from policies.field_targets import FieldTargets
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
    value as JSON would hold it (durations as text); meaningless where ``required`` or ``block``. A block that may
    be one of several names the field that says which in ``told_by``; the fields of each follow below its name
    (``spec.faults[].fault.hang.health``), as pydantic places its complaints. ``targets`` is what carries the
    field; only policies declare it.
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
    told_by: str = ""
    targets: FieldTargets | None = None

    @property
    def holds_value(self) -> bool:
        """Whether it holds a value, and not further fields."""
        return not self.block and self.type != "list of blocks"


def json_schema(kind: str | None = None) -> Schema:
    """JSON Schema (draft 2020-12) of documents of one kind, or of all kinds, distinguished by ``kind``."""
    if kind is not None:
        return document_schema(KINDS[kind])
    definitions: Schema = {}
    for name, model in KINDS.items():
        schema = _of_model(model)
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


def document_schema(model: type[Spec]) -> Schema:
    """JSON Schema (draft 2020-12) of documents of one model, whose name is their kind."""
    return {"$schema": _DIALECT, **_of_model(model)}


def fields(kind: str) -> Mapping[str, FieldDoc]:
    """Every field of a kind of policy document by its path, depth first in the order of the models."""
    return fields_of(KINDS[kind])


@cache
def fields_of(model: type[Spec]) -> Mapping[str, FieldDoc]:
    """Every field of a model of documents, likewise."""
    schema, targets = _of_model(model), dict(_targets(model, "", None))
    return MappingProxyType(
        {one.path: replace(one, targets=targets.get(one.path)) for one in _walk(schema, schema["$defs"], "")}
    )


def leaves(kind: str) -> Iterator[FieldDoc]:
    """The fields of a kind that hold a value, and not further fields."""
    yield from (doc for doc in fields(kind).values() if doc.holds_value)


@cache
def leaf_targets(kind: str) -> Mapping[str, FieldTargets]:
    """What carries each field that holds a value, by path; ``TypeError`` names a field that declares nothing."""
    found: dict[str, FieldTargets] = {}
    for doc in leaves(kind):
        if doc.targets is None:
            msg = f"{kind}.{doc.path} declares no targets: give documented_field() its FieldTargets"
            raise TypeError(msg)
        found[doc.path] = doc.targets
    return MappingProxyType(found)


def _targets(
    model: type[Spec], prefix: str, around: FieldTargets | None
) -> Iterator[tuple[str, FieldTargets | None]]:
    """Path and targets of every field; a field that declares none has those of the nearest block that does."""
    for name, field in model.model_fields.items():
        path = f"{prefix}.{field.alias or name}" if prefix else field.alias or name
        targets = declaration(field).targets or around
        yield path, targets
        inner = tuple(_blocks(field.annotation))
        if len(inner) == 1:
            yield from _targets(inner[0], f"{path}[]" if _is_list(field.annotation) else path, targets)


def _blocks(annotation: Any) -> Iterator[type[Spec]]:
    """The models that a field's type names, whether optional or items of a list."""
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        yield annotation
    for one in get_args(annotation):
        yield from _blocks(one)


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is tuple or any(_is_list(one) for one in get_args(annotation))


def generic(steps: tuple[Step, ...]) -> str:
    """The path of a field in ``fields``: ``spec.endpoints[].port`` for the port of any endpoint."""
    return "".join("[]" if isinstance(step, int) else f".{step}" for step in steps).lstrip(".")


def field_at(model: type[Spec], steps: tuple[Step, ...]) -> FieldDoc | None:
    """What there is to know about the field at these steps; an item of a plain list stands for its list."""
    known = fields_of(model)
    path = generic(steps)
    return known.get(path) or known.get(path.removesuffix("[]"))


def names_at(model: type[Spec], steps: tuple[Step, ...]) -> tuple[str, ...]:
    """Names of the fields that may stand in the block at these steps."""
    path = generic(steps)
    prefix = f"{path}." if path else ""
    inner = (one.removeprefix(prefix) for one in fields_of(model) if one.startswith(prefix))
    return tuple(name for name in inner if "." not in name and "[" not in name)


def _of_model(model: type[Spec]) -> Schema:
    kind = model.__name__
    schema: Schema = _editable(model.model_json_schema(by_alias=True))
    _require_tags(schema, schema["$defs"])
    schema["properties"]["apiVersion"] = {
        "enum": list(API_VERSIONS),
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


def _require_tags(node: Any, definitions: Schema) -> None:
    """Require the discriminator field of blocks, which pydantic leaves optional for a single one."""
    for one in node if isinstance(node, list) else node.values() if isinstance(node, dict) else ():
        _require_tags(one, definitions)
    if isinstance(node, dict) and isinstance(node.get("discriminator"), dict):
        tag = node["discriminator"]["propertyName"]
        for name in node["discriminator"]["mapping"].values():
            option = definitions[name.rpartition("/")[2]]
            option["required"] = sorted({*option.get("required", ()), tag}, key=list(option["properties"]).index)


def _walk(block: Schema, definitions: Schema, prefix: str, defaults: Schema | None = None) -> Iterator[FieldDoc]:
    """Fields of a block; ``defaults`` are those its owner gives it in place of its own."""
    required = set(block.get("required", ()))
    for name, said in block["properties"].items():
        path = f"{prefix}.{name}" if prefix else name
        shape = _shape(said, definitions)
        nested = shape if "properties" in shape else None
        items = _shape(shape["items"], definitions) if "items" in shape else {}
        tag = shape.get("discriminator", {}).get("propertyName", "")
        # What a type says of itself stands one level down where nothing at all may be written too.
        told = {**next((one for one in said.get("anyOf", ()) if one.get("type") != "null"), {}), **said}
        yield FieldDoc(
            path=path,
            type=told.get("x-type") or _type(shape, definitions),
            allowed=told.get("x-allowed") or _allowed(shape, definitions),
            description=said.get("description") or shape.get("description", ""),
            default=(defaults or {}).get(name, said.get("default")),
            required=name in required,
            block=nested is not None or bool(tag),
            unit=said.get("x-unit", ""),
            why=said.get("x-why", ""),
            told_by=tag,
        )
        if nested is not None:
            yield from _walk(nested, definitions, path, said.get("default"))
        elif "properties" in items:
            yield from _walk(items, definitions, f"{path}[]")
        elif tag:
            for choice, reference in shape["discriminator"]["mapping"].items():
                yield from _walk(_shape({"$ref": reference}, definitions), definitions, f"{path}.{choice}")


def _shape(said: Schema, definitions: Schema) -> Schema:
    """The schema itself, without a reference or an alternative ``null``."""
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
    if "discriminator" in shape:
        return "block"
    return _NAMES[shape.get("type", "string")]


def _allowed(shape: Schema, definitions: Schema) -> str:  # noqa: PLR0911 - one line per kind of value
    """What values a field takes, in words."""
    if "const" in shape:
        return str(shape["const"])
    if "enum" in shape:
        return "one of " + ", ".join(map(str, shape["enum"]))
    if "discriminator" in shape:
        said = shape["discriminator"]
        return f"a block whose {said['propertyName']} is one of {', '.join(said['mapping'])}"
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
