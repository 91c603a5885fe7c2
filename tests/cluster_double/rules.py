"""The rules of a schema (``x-kubernetes-validations``), asked about an object.

They are run by a CEL interpreter where one is installed (PyPI ``common-expression-language``); without it no rule
is evaluated, and the fake reports that. Its types are CEL's own, not the schema's: faults of a rule that the API
server refuses in a definition, such as comparing unlike types or a cost beyond the budget, are not detected.

Source: Kubernetes, "Validation rules".
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any, Final

from tests.cluster_double.json_object import Object, canonical
from tests.cluster_double.refusal import Cause

_OLD: Final = re.compile(r"\boldSelf\b")

_INTERPRETER: Final = find_spec("cel")


def asked() -> bool:
    """Whether there is an interpreter, so that rules are asked at all."""
    return _INTERPRETER is not None


def broken(schema: Object, value: Any, before: Any, path: str = "") -> Iterator[Cause]:
    """The rules that do not hold for a value, which has the shape of its schema."""
    if _INTERPRETER is None or value is None:
        return
    for rule in schema.get("x-kubernetes-validations") or ():
        transition = bool(_OLD.search(rule["rule"]))
        if transition and before is None:
            continue
        yield from _asked(schema, rule, value, before if transition else None, path)
    if isinstance(value, dict):
        properties, extra = schema.get("properties") or {}, schema.get("additionalProperties")
        for name, one in value.items():
            inner = properties.get(name, extra if isinstance(extra, dict) else None)
            old = before.get(name) if isinstance(before, dict) else None
            if inner is not None and (path or name != "metadata"):
                yield from broken(inner, one, old, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and "items" in schema:
        for number, one in enumerate(value):
            yield from broken(schema["items"], one, None, f"{path}[{number}]")


def _asked(schema: Object, rule: Object, value: Any, before: Any, path: str) -> Iterator[Cause]:
    names = {"self": _typed(schema, value, root=not path)}
    if before is not None:
        names["oldSelf"] = _typed(schema, before, root=not path)
    field = f"{path}{rule.get('fieldPath', '')}".lstrip(".")
    try:
        held, why = _run(rule["rule"], names), ""
    except (ValueError, RuntimeError, TypeError) as error:
        held, why = False, f"rule evaluation error: {error}"
    if held is True:
        return
    if not why and "messageExpression" in rule:
        why = str(_run(rule["messageExpression"], names))
    said = why or rule.get("message") or f"failed rule: {rule['rule']}"
    shown = '"object"' if isinstance(value, dict) else '"array"' if isinstance(value, list) else canonical(value)
    yield Cause(
        field=field, message=f"Invalid value: {shown}: {said}", reason=rule.get("reason", "FieldValueInvalid")
    )


def _run(text: str, names: Object) -> Any:
    return _program(text)(names)


@cache
def _program(text: str) -> Callable[[Object], Any]:
    import cel  # noqa: PLC0415 - without rules no interpreter is needed

    program = cel.compile(text)

    def run(names: Object) -> Any:
        return program.execute(names)

    return run


def _typed(schema: Object, value: Any, *, root: bool) -> Any:
    """A value in the types of its schema: numbers are doubles, whole or not; of metadata only the name is seen.

    A field that is null is as one that is not there.
    """
    if isinstance(value, dict):
        properties, extra = schema.get("properties") or {}, schema.get("additionalProperties")
        shown = {}
        for name, one in value.items():
            if one is None and name in properties:
                continue
            if root and name == "metadata":
                shown[name] = {key: text for key, text in one.items() if key in {"name", "generateName"}}
            elif name in properties:
                shown[name] = _typed(properties[name], one, root=False)
            elif isinstance(extra, dict):
                shown[name] = _typed(extra, one, root=False)
            elif root and name in {"apiVersion", "kind"}:
                shown[name] = one
        return shown
    if isinstance(value, list):
        return [_typed(schema.get("items") or {}, one, root=False) for one in value]
    if schema.get("type") == "number" and not isinstance(value, bool) and isinstance(value, int):
        return float(value)
    if schema.get("type") == "integer" and isinstance(value, float):
        return int(value)
    return value
