"""A model's schema for a cluster: structural OpenAPI v3, without references and defaults.

A CustomResourceDefinition supports less than JSON Schema: references are written out, ``null`` next to a value
becomes ``nullable``, bounds of durations become rules. Absent fields are not defaulted, because it matters which
layer set a value.

Source: Kubernetes, "Specifying a structural schema", "Validation rules"; apiextensions ``JSONSchemaProps``.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args

from annotated_types import Ge, Gt, Le

from policies.document import Spec, declaration
from policies.field_checks import CelRule, ListKeys, NullAllowed
from policies.quantity import DURATION_PATTERN, MAX_DURATION_S, format_duration
from policies.schema import Schema

_KEPT: Final = (
    "type", "pattern", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems", "maxProperties",
    "enum",
)  # fmt: skip
_INT_OR_STRING: Final = "x-kubernetes-int-or-string"


def structural_schema(model: type[Spec]) -> Schema:
    """The schema of a model's block, with the rules that hold inside it."""
    return _block(model, _models(model), model.model_json_schema(by_alias=True))


def _models(model: type[Spec]) -> Mapping[str, type[Spec]]:
    """All models inside a model, by name."""
    found: dict[str, type[Spec]] = {}
    waiting: list[Any] = [model]
    while waiting:
        one = waiting.pop()
        waiting += get_args(one)
        if isinstance(one, type) and issubclass(one, Spec) and one.__name__ not in found:
            found[one.__name__] = one
            waiting += [field.annotation for field in one.model_fields.values()]
    return found


def _block(model: type[Spec], models: Mapping[str, type[Spec]], top: Schema) -> Schema:
    said = top if model.__name__ == top.get("title") else top["$defs"][model.__name__]
    aliases = {str(field.alias or name): name for name, field in model.model_fields.items()}
    properties = {
        alias: _field(model, aliases[alias], inner, models, top) for alias, inner in said["properties"].items()
    }
    rules = list(_rules(model))
    return {
        "type": "object",
        "description": said.get("description", ""),
        **({"required": list(said["required"])} if said.get("required") else {}),
        "properties": properties,
        **({"x-kubernetes-validations": rules} if rules else {}),
    }


def _rules(model: type[Spec]) -> Iterator[Schema]:
    """The rules of a block, in the order of its fields' names: a field that moves changes no definition."""
    for name in sorted(model.model_fields):
        for one in declaration(model.model_fields[name]).checks:
            if isinstance(one, CelRule):
                yield one.to_schema()


def _field(model: type[Spec], name: str, said: Schema, models: Mapping[str, type[Spec]], top: Schema) -> Schema:
    result = _value(said, models, top)
    checks = declaration(model.model_fields[name]).checks
    if any(isinstance(one, NullAllowed) for one in checks):
        result["nullable"] = True
    if result.get("type") == "string" and said.get("default") == "" and "minLength" in result:
        # An empty text means the default, like an absent field.
        del result["minLength"]
        result["pattern"] = f"{result['pattern']}|^$"
    if result.get("pattern") == DURATION_PATTERN:
        result["x-kubernetes-validations"] = [_bounds(model.model_fields[name].metadata, said)]
    for one in checks:
        if isinstance(one, ListKeys):
            result |= one.to_schema()
    return {
        "description": _description(said, result),
        **{key: one for key, one in result.items() if key != "description"},
    }


def _value(said: Schema, models: Mapping[str, type[Spec]], top: Schema) -> Schema:
    """The schema of a value, wherever it stands."""
    if "$ref" in said:
        name = said["$ref"].rpartition("/")[2]
        if name in models:
            return _block(models[name], models, top)
        return _value(top["$defs"][name], models, top)
    if said.get(_INT_OR_STRING):
        return _number_or_text(said["anyOf"])
    if "anyOf" in said:
        options = [one for one in said["anyOf"] if one.get("type") != "null"]
        if len(options) != 1:
            msg = f"a cluster has no words for {said}"
            raise TypeError(msg)
        return _nullable(_value(options[0], models, top))
    result: Schema = {key: said[key] for key in _KEPT if key in said}
    if "const" in said:
        result["enum"] = [said["const"]]
    # What JSON Schema says by a number, OpenAPI v3 says by a number and a word.
    for bound, word in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if word in said:
            result |= {bound: said[word], word: True}
    if "items" in said:
        result["items"] = _value(said["items"], models, top)
    if isinstance(said.get("additionalProperties"), dict):
        result["additionalProperties"] = _value(said["additionalProperties"], models, top)
    if "type" not in result:
        msg = f"a cluster has no words for {said}"
        raise TypeError(msg)
    return result


def _number_or_text(options: list[Schema]) -> Schema:
    """A number or a text; limits of one do not concern the other."""
    limits = {key: one for option in options for key, one in option.items() if key in _KEPT and key != "type"}
    return {_INT_OR_STRING: True, **limits}


def _nullable(result: Schema) -> Schema:
    # The API server holds null against the values listed, whatever `nullable` says; a pattern it does not ask.
    if "enum" in result:
        choices = result.pop("enum")
        result["pattern"] = f"^({'|'.join(choices)})$"
    return {**result, "nullable": True}


def _bounds(constraints: list[Any], said: Schema) -> Schema:
    """The rule that holds a duration between its bounds."""
    low, least, most = 0.0, "", MAX_DURATION_S
    for one in constraints:
        match one:
            case Ge(ge=float() | int() as bound):
                low, least = float(bound), ">="
            case Gt(gt=float() | int() as bound):
                low, least = float(bound), ">"
            case Le(le=float() | int() as bound):
                most = float(bound)
    parts = [f"duration(self) <= duration('{format_duration(most)}')"]
    if least and (low or least == ">"):
        parts.insert(0, f"duration(self) {least} duration('{format_duration(low)}')")
    return {"rule": " && ".join(parts), "message": f"must be {said['x-allowed']}"}


def _description(said: Schema, result: Schema) -> str:
    """The field's description with its default, which the cluster does not fill in."""
    text = said.get("description") or result.get("description", "")
    default = said.get("default")
    if default is None or isinstance(default, (list, dict)) or default == "":
        return str(text)
    if said.get("x-unit") == "duration":
        shown = format_duration(default)
    else:
        shown = (
            str(default).lower()
            if isinstance(default, bool)
            else f"{default:g}"
            if isinstance(default, float)
            else str(default)
        )
    return f"{text} Default: {shown}."


def blocks(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every part of a structural schema, with its path (``spec.endpoints[].port``)."""
    yield path, schema
    for name, inner in (schema.get("properties") or {}).items():
        yield from blocks(inner, f"{path}.{name}" if path else name)
    if "items" in schema:
        yield from blocks(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from blocks(schema["additionalProperties"], f"{path}{{}}")
