"""Replacements for values that a field refuses, each checked against the field before it is shown.

A hint keeps the value that the author meant: ``1.10`` becomes ``"1.10"``, from the text of the file and not from
the number that YAML reads.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Final, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from policies.document import Spec
from policies.origin import Step
from policies.quantity import is_ip
from policies.schema import FieldDoc
from policies.yaml_text import parse, resolved

_PLAIN: Final = re.compile(r"[A-Za-z0-9_./\[][-A-Za-z0-9_./]*(?::[-A-Za-z0-9_./]+)*")
_WORDS: Final = re.compile(r"[\w./-]+(?:\s*,\s*[\w./-]+)+")
_NUMBER: Final = re.compile(r"([-+]?)0*([0-9]+)(\.[0-9]+)?", re.ASCII)
_THOUSANDS: Final = re.compile(r"[-+]?[0-9]{1,3}(?:[,_' ][0-9]{3})+", re.ASCII)
_DECIMAL_COMMA: Final = re.compile(r"[-+]?[0-9]+,[0-9]{1,2}", re.ASCII)
_PERCENT: Final = re.compile(r"(.*?[0-9])\s*%")
_BOOLEANS: Final = {
    **dict.fromkeys(("yes", "on", "y", "true", "1"), "true"),
    **dict.fromkeys(("no", "off", "n", "false", "0"), "false"),
}
_ADDRESSES: Final = {"localhost": "127.0.0.1", "*": "0.0.0.0"}
_LENGTH: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)")
_UNITS: Final = {
    **dict.fromkeys(("ms", "msec", "msecs", "millis", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), "h"),
}
_DAYS: Final = frozenset({"d", "day", "days"})


def replacement(model: type[Spec], steps: tuple[Step, ...], field: FieldDoc, value: object, source: str) -> str:
    """YAML that the field at ``steps`` takes in the place of ``value``, which the file writes as ``source``.

    Empty where nothing that means the same is accepted.
    """
    for text in dict.fromkeys(_candidates(field, value, source)):
        if accepts(model, steps, text):
            return text
    return ""


def accepts(model: type[Spec], steps: tuple[Step, ...], text: str) -> bool:
    """Whether the field at ``steps`` takes this YAML; false where its type is unknown."""
    adapter = _adapter(model, tuple(0 if isinstance(step, int) else step for step in steps))
    documents = parse(text).documents
    if adapter is None or len(documents) != 1:
        return False
    try:
        adapter.validate_json(json.dumps(documents[0].value), strict=True)
    except (ValidationError, ValueError):
        return False
    return True


def yaml_scalar(text: str) -> str:
    """Text as a YAML scalar that is text again, quoted only where it has to be."""
    return text if _PLAIN.fullmatch(text) and resolved(text) == text else json.dumps(text, ensure_ascii=False)


def _candidates(field: FieldDoc, value: object, source: str) -> Iterator[str]:
    if field.type.startswith("list of "):
        yield from _lists(value, source)
    elif field.type == "duration":
        yield from _durations(source)
    elif field.type in ("number", "whole number"):
        yield from _numbers(value)
    elif field.type == "true or false":
        yield _BOOLEANS.get(source.lower(), "")
    elif isinstance(value, (bool, int, float)):
        yield json.dumps(source)
    if isinstance(value, str):
        yield from _texts(value)


def _lists(value: object, source: str) -> Iterator[str]:
    if isinstance(value, str):
        if _WORDS.fullmatch(value):
            yield f"[{', '.join(part.strip() for part in value.split(','))}]"
        yield f"[{yaml_scalar(value)}]"
    elif isinstance(value, (bool, int, float)):
        yield f"[{source}]"
        yield f"[{json.dumps(source)}]"


def _numbers(value: object) -> Iterator[str]:
    if isinstance(value, float):
        yield f"{value:.0f}" if value.is_integer() else ""
        return
    if not isinstance(value, str):
        return
    text = value.strip()
    if share := _PERCENT.fullmatch(text):
        text = share.group(1)
    if _DECIMAL_COMMA.fullmatch(text):
        text = text.replace(",", ".")
    elif _THOUSANDS.fullmatch(text):
        text = re.sub(r"[,_' ]", "", text)
    text = text.replace("_", "")
    if number := _NUMBER.fullmatch(text):
        sign, whole, fraction = number.groups()
        yield f"{sign.removeprefix('+')}{whole}{fraction or ''}"
        if fraction and not fraction.strip(".0"):
            yield f"{sign.removeprefix('+')}{whole}"


def _durations(source: str) -> Iterator[str]:
    if re.fullmatch(r"[0-9]*\.?[0-9]+", source.strip()):
        yield f"{_leading_zero(source.strip())}s"
        return
    parts = _LENGTH.findall(source)
    if not parts or _LENGTH.sub("", source).strip(" \t,"):
        return
    written = ""
    for number, unit in parts:
        if unit.lower() in _DAYS and number.isdecimal():
            written += f"{int(number) * 24}h"
        elif unit.lower() in _UNITS and unit != "M":
            written += f"{number}{_UNITS[unit.lower()]}"
        else:
            return
    yield written


def _leading_zero(number: str) -> str:
    return f"0{number}" if number.startswith(".") else number


def _texts(value: str) -> Iterator[str]:
    """A name with its forbidden characters replaced, an address without scheme, port and path, a path with a /."""
    yield _ADDRESSES.get(value, "")
    if re.fullmatch(r"[\s\w.-]+", value, re.ASCII):
        name = re.sub(r"[^a-z0-9]+", "-", value.lower()).strip("-")
        yield yaml_scalar(name)
        yield yaml_scalar(re.sub(r"[^A-Za-z0-9.]+", "-", value).strip("-."))
    host = re.sub(r"^[a-z][a-z0-9+.-]*://", "", value.strip(), flags=re.IGNORECASE).partition("/")[0]
    if host.startswith("[") and is_ip(host.partition("]")[0].removeprefix("[")):
        host = host.partition("]")[0].removeprefix("[")
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    yield yaml_scalar(host) if host != value else ""
    if re.fullmatch(r"[\w-]+(?:/[\w-]+)*", value, re.ASCII):
        yield yaml_scalar(f"/{value}")


@cache
def _adapter(model: type[Spec], steps: tuple[Step, ...]) -> TypeAdapter[Any] | None:
    annotation: Any = model
    for step in steps:
        annotation = _item(annotation) if isinstance(step, int) else _named(annotation, step)
        if annotation is None:
            return None
    return TypeAdapter(annotation)


def _parts(annotation: Any) -> Iterator[Any]:
    """The types that a value may have, behind annotations and unions."""
    if get_origin(annotation) is Annotated:
        yield from _parts(get_args(annotation)[0])
    elif isinstance(annotation, type) or get_origin(annotation) in (tuple, dict):
        yield annotation
    else:
        for one in get_args(annotation):
            yield from _parts(one)


def _item(annotation: Any) -> Any:
    lists = [one for one in _parts(annotation) if get_origin(one) is tuple]
    return get_args(lists[0])[0] if lists else None


def _named(annotation: Any, name: str) -> Any:
    """The type of the field of this name; of the alternatives, the one that has it or is called so."""
    for one in _parts(annotation):
        if get_origin(one) is dict:
            return get_args(one)[1]
        if not (isinstance(one, type) and issubclass(one, Spec)):
            continue
        for key, field in one.model_fields.items():
            if name == (field.alias or key):
                return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
            if name in get_args(field.annotation):
                return one  # the block that pydantic names by its discriminator
    return None
