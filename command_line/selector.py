"""``-l``: kubectl's label selectors over the fields of a row, such as ``health!=HEALTHY,zone in (a,b)``."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click

_KEY: Final = r"[A-Za-z0-9_./-]+"
_VALUE: Final = r"[^\s,()=!]*"
_FORMS: Final = re.compile(
    rf"""\s*(?:
        !\s*(?P<absent>{_KEY})
      | (?P<key>{_KEY})\s*(?P<operator>==|=|!=)\s*(?P<value>{_VALUE})
      | (?P<member>{_KEY})\s+(?P<not>not\s*)?in\s*\((?P<values>[^()]*)\)
      | (?P<present>{_KEY})
    )\s*(?:,|$)""",
    re.VERBOSE,
)


_Command = TypeVar("_Command", bound=Callable[..., Any])


class SelectorError(ValueError):
    """The selector is malformed; the message names the part."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One part: the field has one of the values (any, where there are none), or with ``negated`` has not."""

    key: str
    values: frozenset[str]
    negated: bool = False

    def holds(self, fields: Mapping[str, Any]) -> bool:
        """Whether a row with these fields fulfils it; states are compared whatever their case."""
        found = {one.casefold() for one in _texts(fields.get(self.key))}
        matches = bool(found & self.values) if self.values else bool(found)
        return matches != self.negated


@dataclass(frozen=True, slots=True)
class Selector:
    """All parts have to hold."""

    requirements: tuple[Requirement, ...] = ()

    @property
    def keys(self) -> frozenset[str]:
        """The fields it names."""
        return frozenset(one.key for one in self.requirements)

    def matches(self, fields: Mapping[str, Any]) -> bool:
        """Whether a row with these fields is selected."""
        return all(one.holds(fields) for one in self.requirements)


def parse_selector(text: str) -> Selector:
    """The selector; ``SelectorError`` where it is malformed."""
    at, found = 0, []
    while at < len(text.rstrip()):
        part = _FORMS.match(text, at)
        if not part:
            raise SelectorError(
                f"{text[at:].strip()!r} is not KEY, !KEY, KEY=VALUE, KEY!=VALUE or KEY in (VALUE, ...)"
            )
        found.append(_requirement(part))
        at = part.end()
    return Selector(tuple(found))


def selector_option(example: str) -> Callable[[_Command], _Command]:
    """``-l/--selector``; the command gets ``selector``, a ``Selector``."""
    return click.option(
        "--selector",
        "-l",
        default="",
        callback=_parsed,
        metavar="SELECTOR",
        help=f"Only rows whose fields match, e.g. {example}.",
    )


def _parsed(_context: click.Context, _option: click.Parameter, text: str) -> Selector:
    try:
        return parse_selector(text)
    except SelectorError as error:
        raise click.BadParameter(str(error)) from error


def _requirement(part: "re.Match[str]") -> Requirement:
    if part["absent"]:
        return Requirement(part["absent"], frozenset(), negated=True)
    if part["present"]:
        return Requirement(part["present"], frozenset())
    if part["key"]:
        return Requirement(part["key"], frozenset({part["value"].casefold()}), negated=part["operator"] == "!=")
    values = _trimmed(part["values"].split(","))
    if not values:
        raise SelectorError(f"{part.group().strip()!r} names no value")
    return Requirement(part["member"], values, negated=bool(part["not"]))


def _trimmed(values: Iterable[str]) -> frozenset[str]:
    return frozenset(one.strip().casefold() for one in values if one.strip())


def _texts(value: Any) -> list[str]:
    """The value as text; the items of a list; nothing where it is absent or empty."""
    if value is None or value == "":
        return []
    if isinstance(value, bool):
        return ["true" if value else "false"]
    if isinstance(value, list | tuple):
        return [text for one in value for text in _texts(one)]
    if isinstance(value, Mapping):
        return [str(key) for key in value]
    return [f"{value:g}" if isinstance(value, float) else str(value)]
