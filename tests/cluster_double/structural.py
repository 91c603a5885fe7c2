"""Structural schemas: defaulting, pruning and validation of objects.

Formats are not checked. Messages are close to those of the API server.

Source: Kubernetes, "Specifying a structural schema", "Field pruning", "Defaulting".
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from tests.cluster_double.json_object import Object, canonical
from tests.cluster_double.refusal import Cause

_ROOT: Final = frozenset({"apiVersion", "kind", "metadata"})
_DOLLAR: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\$")
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int, float),
    "number": (int, float),
}


def defaulted(schema: Object, value: Any) -> Any:
    """``value`` with the defaults of the schema; a null that may not be one makes room for its default."""
    if isinstance(value, dict):
        result = dict(value)
        for name, inner in (schema.get("properties") or {}).items():
            if result.get(name) is None and "default" in inner and not (name in result and inner.get("nullable")):
                result[name] = inner["default"]
            if name in result:
                result[name] = defaulted(inner, result[name])
        extra = schema.get("additionalProperties")
        if isinstance(extra, dict):
            return {name: defaulted(extra, one) for name, one in result.items()}
        return result
    if isinstance(value, list):
        return [defaulted(schema.get("items") or {}, one) for one in value]
    return value


def pruned(schema: Object, value: Any, *, root: bool = True) -> Any:
    """``value`` without the fields that the schema does not name."""
    if isinstance(value, dict):
        properties, extra = schema.get("properties") or {}, schema.get("additionalProperties")
        keep = bool(schema.get("x-kubernetes-preserve-unknown-fields")) or extra is True
        result = {}
        for name, one in value.items():
            if (root or schema.get("x-kubernetes-embedded-resource")) and name in _ROOT:
                result[name] = one
            elif name in properties:
                result[name] = pruned(properties[name], one, root=False)
            elif isinstance(extra, dict):
                result[name] = pruned(extra, one, root=False)
            elif keep:
                result[name] = one
        return result
    if isinstance(value, list) and "items" in schema:
        return [pruned(schema["items"], one, root=False) for one in value]
    return value


def unknown(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Paths of the fields that pruning took away."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name, one in before.items():
            inner = f"{path}.{name}" if path else name
            if name not in after:
                yield inner
            else:
                yield from unknown(one, after[name], inner)
    elif isinstance(before, list) and isinstance(after, list):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from unknown(one, other, f"{path}[{number}]")


def wrong(schema: Object, value: Any, path: str = "") -> Iterator[Cause]:
    """What is wrong with a value by its schema, without rules."""
    if value is None and schema.get("nullable"):
        # Null is checked against the enum too, and is never in it.
        if "enum" in schema:
            yield from _limited(schema, value, path)
        return
    yield from _typed(schema, value, path)
    yield from _limited(schema, value, path)
    yield from _combined(schema, value, path)
    if isinstance(value, dict):
        yield from _inside(schema, value, path)
    elif isinstance(value, list):
        yield from _listed(schema, value, path)


def _typed(schema: Object, value: Any, path: str) -> Iterator[Cause]:
    wanted = schema.get("type")
    if schema.get("x-kubernetes-int-or-string"):
        fits, wanted = isinstance(value, (int, str)) and not isinstance(value, bool), "integer,string"
    elif wanted is None:
        return
    else:
        fits = isinstance(value, _TYPES[wanted]) and (wanted == "boolean" or not isinstance(value, bool))
        if fits and wanted == "integer" and isinstance(value, float):
            fits = value.is_integer()
    if not fits:
        yield Cause(
            field=path,
            reason="FieldValueTypeInvalid",
            message=f'Invalid value: "{_name(value)}": {path} in body must be of type {wanted}: "{_name(value)}"',
        )


def _name(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)]


def _limited(schema: Object, value: Any, path: str) -> Iterator[Cause]:
    if "enum" in schema and (value is None or value not in schema["enum"]):
        listed = ", ".join(canonical(one) for one in schema["enum"])
        message = f"Unsupported value: {canonical(value)}: supported values: {listed}"
        yield Cause(field=path, message=message, reason="FieldValueNotSupported")
    if isinstance(value, str):
        yield from _text(schema, value, path)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from _number(schema, value, path)
    elif isinstance(value, (list, dict)):
        yield from _sized(schema, value, path)


def _text(schema: Object, value: str, path: str) -> Iterator[Cause]:
    said = canonical(value)
    if "maxLength" in schema and len(value) > schema["maxLength"]:
        message = f"Too long: may not be more than {schema['maxLength']} bytes"
        yield Cause(field=path, message=message, reason="FieldValueTooLong")
    if "minLength" in schema and len(value) < schema["minLength"]:
        least = schema["minLength"]
        yield Cause(
            field=path, message=f"Invalid value: {said}: {path} in body should be at least {least} chars long"
        )
    if "pattern" in schema and not _pattern(schema["pattern"]).search(value):
        yield Cause(
            field=path, message=f"Invalid value: {said}: {path} in body should match '{schema['pattern']}'"
        )


def _number(schema: Object, value: float, path: str) -> Iterator[Cause]:
    high, low, by = schema.get("maximum"), schema.get("minimum"), schema.get("multipleOf")
    wrong_by = []
    if high is not None and (value > high or (schema.get("exclusiveMaximum") and value == high)):
        wrong_by.append(f"less than {'' if schema.get('exclusiveMaximum') else 'or equal to '}{high}")
    if low is not None and (value < low or (schema.get("exclusiveMinimum") and value == low)):
        wrong_by.append(f"greater than {'' if schema.get('exclusiveMinimum') else 'or equal to '}{low}")
    if by is not None and value % by:
        wrong_by.append(f"a multiple of {by}")
    for one in wrong_by:
        yield Cause(field=path, message=f"Invalid value: {canonical(value)}: {path} in body should be {one}")


def _sized(schema: Object, value: list[Any] | Object, path: str) -> Iterator[Cause]:
    what = "Items" if isinstance(value, list) else "Properties"
    most, least = schema.get(f"max{what}"), schema.get(f"min{what}")
    if most is not None and len(value) > most:
        message = f"Too many: {len(value)}: must have at most {most} items"
        yield Cause(field=path, message=message, reason="FieldValueTooMany")
    if least is not None and len(value) < least:
        message = f"Invalid value: {len(value)}: {path} in body should have at least {least} {what.lower()}"
        yield Cause(field=path, message=message)


@cache
def _pattern(text: str) -> re.Pattern[str]:
    # RE2's $ is the end of the text; Python's may stand before a last line break. In brackets it is a dollar.
    return re.compile(_DOLLAR.sub(lambda found: r"\Z" if found.group() == "$" else found.group(), text))


def _combined(schema: Object, value: Any, path: str) -> Iterator[Cause]:
    for one in schema.get("allOf") or ():
        yield from wrong(one, value, path)
    if "anyOf" in schema and not any(_holds(one, value) for one in schema["anyOf"]):
        yield Cause(field=path, message=f"{path} in body must validate at least one schema (anyOf)")
    if "oneOf" in schema and sum(_holds(one, value) for one in schema["oneOf"]) != 1:
        yield Cause(field=path, message=f"{path} in body must validate one and only one schema (oneOf)")
    if "not" in schema and _holds(schema["not"], value):
        yield Cause(field=path, message=f"{path} in body must not validate the schema (not)")


def _holds(schema: Object, value: Any) -> bool:
    return next(wrong(schema, value), None) is None


def _inside(schema: Object, value: Object, path: str) -> Iterator[Cause]:
    properties, extra = schema.get("properties") or {}, schema.get("additionalProperties")
    for name in schema.get("required") or ():
        if name not in value:
            inner = f"{path}.{name}" if path else name
            yield Cause(field=inner, message="Required value", reason="FieldValueRequired")
    for name, one in value.items():
        inner = f"{path}.{name}" if path else name
        if not path and name == "metadata":
            # Defined by the API; a schema may only limit the name.
            limits = (properties.get(name) or {}).get("properties") or {}
            if "name" in limits:
                yield from wrong(limits["name"], one.get("name"), "metadata.name")
        elif name in properties:
            yield from wrong(properties[name], one, inner)
        elif isinstance(extra, dict):
            yield from wrong(extra, one, inner)


def _listed(schema: Object, value: list[Any], path: str) -> Iterator[Cause]:
    for number, one in enumerate(value):
        yield from wrong(schema.get("items") or {}, one, f"{path}[{number}]")
    sort = schema.get("x-kubernetes-list-type")
    if sort not in {"set", "map"}:
        return
    keys = schema.get("x-kubernetes-list-map-keys") or ()
    seen: set[str] = set()
    for number, one in enumerate(value):
        key = {name: one[name] for name in keys if name in one} if sort == "map" and isinstance(one, dict) else one
        text = canonical(key)
        if text in seen:
            message = f"Duplicate value: {text}"
            yield Cause(field=f"{path}[{number}]", message=message, reason="FieldValueDuplicate")
        seen.add(text)
