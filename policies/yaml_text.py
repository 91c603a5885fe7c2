"""Parse the text of a policy file into plain values and their places, without trusting the text.

PyYAML's C parser finds the structure, event by event. Values are built here, so that depth, aliases and duplicate
keys are checked before memory runs out. Scalars follow YAML 1.2: ``no``, ``on`` and ``1:30`` are text. JSON is
YAML.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeAlias

import yaml
from yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from policies.findings import Problem, did_you_mean, format_value
from policies.origin import BlockPlaces, ListPlaces, Places, Spot, line_of, spot, start

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, Value] | None"

MAX_DEPTH: Final = 64
"""Levels of nesting. A policy has eight; more is an accident or an attack."""

MAX_ALIASED_CHARACTERS: Final = 10_000_000
"""Characters that aliases may repeat: ten times what 10,000 engines need that share a block of 100 characters."""

MAX_PROBLEMS: Final = 100
"""Problems reported per file. A hundred usually have one cause."""

_INT: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,3999})")
_BASED: Final = re.compile(r"0o[0-7]{1,999}|0x[0-9a-fA-F]{1,999}")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?")
_SPECIAL: Final[dict[str, bool | float | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
TEMPLATE_HINT: Final = "render the template first: helm template . | switchgear validate -f -"

_TAG: Final = "tag:yaml.org,2002:"
_NUMERIC_START: Final = frozenset("0123456789+-.")

_HINTS: Final = {
    "mapping values are not allowed": "put text with a colon and a space in quotes, or correct the indentation",
    "did not find expected key": "correct the indentation of this line or the one above",
    "could not find expected ':'": "write a field as `name: value`, with a space after the colon",
    "did not find expected '-'": "start all items of a list in the same column",
    "did not find expected ',' or": "close the bracket or brace, or add the missing comma",
    "cannot start any token": "put text that begins with @, ` or % in quotes",
    "document indicator": "close the quote before this line",
    "end of stream": "close the quote, bracket or brace",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RawDocument:
    """One YAML document: its value and the place of each part.

    ``sources`` has the text of unquoted scalars that Python would write otherwise (``1.10``, ``0x10``, ``~``).
    """

    value: Value
    places: Places
    sources: Mapping[Spot, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedText:
    """All readable documents and all problems.

    ``broken``: a document could not be read to its end, so the text may declare more than ``documents``.
    """

    documents: tuple[RawDocument, ...]
    problems: tuple[Problem, ...]
    broken: bool


@dataclass(slots=True)
class _Frame:
    """An open mapping or list. ``key`` is the field whose value comes next."""

    value: list[Value] | dict[str, Value]
    places: BlockPlaces | ListPlaces
    anchor: str | None
    weight: int = 2
    key: "str | _Marker | None" = None
    key_at: Spot = 0
    merges: list[tuple[dict[str, Value], BlockPlaces]] = field(default_factory=list)


class _Marker:
    """A key that names no field."""


_MERGE: Final = _Marker()  # `<<`
_SKIP: Final = _Marker()  # a refused key: its value is read and dropped


class _StopReading(Exception):  # noqa: N818 - not an error: the reason is already among the problems
    """The rest of the text is not read."""


def parse(text: str) -> ParsedText:
    """Read every document of ``text``; never raises."""
    documents: list[RawDocument] = []
    problems: list[Problem] = []
    lines: list[str] = []
    first, offset, broken = 0, 0, False
    while True:
        rest = text[offset:] if offset else text
        reader = _Reader(problems, first)
        try:
            documents += reader.documents(rest)
            break
        except _StopReading:
            broken = True
            break
        except yaml.YAMLError as error:
            broken = True
            lines = lines or text.split("\n")
            line, problem = _syntax(error, rest, first, lines)
            problems.append(problem)
            documents += reader.finished
            # Continue at the next marker, to report the problems of the documents after it too.
            following = (n for n in range(max(line, first + 1), len(lines)) if lines[n].startswith("---"))
            first = next(following, -1)
            if first < 0 or len(problems) >= MAX_PROBLEMS:
                break
            offset = sum(len(one) + 1 for one in lines[:first])
    return ParsedText(documents=tuple(documents), problems=tuple(problems), broken=broken)


class _Reader:
    """Build values from events. One per text; ``finished`` holds the documents read so far."""

    def __init__(self, problems: list[Problem], first_line: int) -> None:
        self._problems = problems
        self._first_line = first_line + 1
        self._anchors: dict[str, tuple[Value, Places, int]] = {}
        self._stack: list[_Frame] = []
        self._aliased = 0
        self._sources: dict[Spot, str] = {}
        self._text = ""
        self._lines: list[str] = []
        self.finished: list[RawDocument] = []

    def documents(self, text: str) -> list[RawDocument]:
        self._text = text
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            self._take(event)
        return self.finished

    def _take(self, event: Event) -> None:
        match event:
            case ScalarEvent():
                value, at = self._scalar(event), self._at(event)
                if not isinstance(value, str) and event.value != format_value(value):
                    self._sources[at] = event.value
                self._complete(value, at, len(event.value) + 1, event.anchor, plain=_is_plain(event))
            case MappingStartEvent():
                self._open(event, {}, BlockPlaces(self._at(event)), "map")
            case SequenceStartEvent():
                self._open(event, [], ListPlaces(self._at(event)), "seq")
            case MappingEndEvent() | SequenceEndEvent():
                frame = self._stack.pop()
                for value, places in frame.merges:
                    _merge(frame, value, places)
                self._complete(frame.value, frame.places, frame.weight, frame.anchor)
            case AliasEvent():
                self._alias(event)
            case DocumentStartEvent():
                self._anchors.clear()
                self._stack.clear()
                self._sources = {}
            case DocumentEndEvent():
                pass
            case _:
                pass  # start and end of the stream

    def _at(self, event: Event) -> Spot:
        mark = event.start_mark
        assert mark is not None  # noqa: S101 - the C parser marks every event
        return spot(mark.line + self._first_line, mark.column + 1)

    def _refuse(self, code: str, at: Spot, message: str, **details: str) -> None:
        self._problems.append(Problem(code=code, at=at, message=message, **details))
        if len(self._problems) >= MAX_PROBLEMS:
            raise _StopReading

    def _open(
        self,
        event: MappingStartEvent | SequenceStartEvent,
        value: list[Value] | dict[str, Value],
        places: BlockPlaces | ListPlaces,
        tag: str,
    ) -> None:
        if event.tag not in {None, "!", _TAG + tag}:
            self._refuse("SG017", places.at, f"unsupported tag {format_value(event.tag)}", hint="remove the tag")
        if len(self._stack) >= MAX_DEPTH:
            self._refuse(
                "SG016",
                places.at,
                f"more than {MAX_DEPTH} levels of nesting; the rest of the file was not read",
                allowed=f"at most {MAX_DEPTH} levels",
            )
            raise _StopReading
        self._stack.append(_Frame(value, places, event.anchor))

    def _scalar(self, event: ScalarEvent) -> Value:
        tag = event.tag
        if tag is None:
            return resolved(event.value) if _is_plain(event) else str(event.value)
        if tag == "!" or tag == _TAG + "str":
            return str(event.value)
        value = resolved(event.value)
        kinds: dict[str, type | tuple[type, ...]] = {
            "int": int, "float": (int, float), "bool": bool, "null": type(None),
        }  # fmt: skip
        kind = kinds.get(tag.removeprefix(_TAG))
        if kind is None:
            self._refuse("SG017", self._at(event), f"unsupported tag {format_value(tag)}", hint="remove the tag")
        elif not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self._refuse(
                "SG017",
                self._at(event),
                f"{format_value(event.value)} is not of the type of its tag",
                hint="remove the tag",
            )
        return value

    def _alias(self, event: AliasEvent) -> None:
        name, at = event.anchor or "", self._at(event)
        known = self._anchors.get(name)
        if known is None:
            if any(frame.anchor == name for frame in self._stack):
                self._refuse("SG015", at, f"alias *{name} repeats itself", hint="remove the alias")
            else:
                self._refuse(
                    "SG015",
                    at,
                    f"unknown alias *{name}: no anchor &{name} above",
                    found=f"*{name}",
                    hint=did_you_mean(name, self._anchors) or f"write &{name} before the value to repeat",
                )
            if self._stack and self._stack[-1].key is not None:
                self._stack[-1].key = _SKIP  # already reported; its value is unknown
            self._complete(None, at, 1, None)
            return
        value, places, weight = known
        self._aliased += weight
        if self._aliased > MAX_ALIASED_CHARACTERS:
            self._refuse(
                "SG015",
                at,
                "aliases repeat too much text; the rest of the file was not read",
                allowed=f"at most {MAX_ALIASED_CHARACTERS:,} characters repeated by aliases",
                hint="use fewer aliases of aliases",
            )
            raise _StopReading
        self._complete(value, places, weight, None)

    def _complete(
        self, value: Value, places: Places, weight: int, anchor: str | None, *, plain: bool = False
    ) -> None:
        """Add a complete value to the block or list around it."""
        if anchor is not None:
            self._anchors[anchor] = (value, places, weight)
        if not self._stack:
            self.finished.append(RawDocument(value=value, places=places, sources=self._sources))
            return
        frame = self._stack[-1]
        frame.weight += weight
        if isinstance(frame.value, list):
            frame.value.append(value)
            assert isinstance(frame.places, ListPlaces)  # noqa: S101 - both are made together in _take
            frame.places.items.append(places)
        elif frame.key is None:
            frame.key_at = start(places)
            frame.key = self._key(frame, value, plain=plain)
        else:
            self._field(frame, frame.key, value, places)
            frame.key = None

    def _line(self, number: int) -> str:
        self._lines = self._lines or self._text.split("\n")
        return self._lines[number - self._first_line]

    def _key(self, frame: _Frame, value: Value, *, plain: bool) -> str | _Marker:
        at = frame.key_at
        if value == "<<" and plain:
            return _MERGE
        if not isinstance(value, str):
            source = self._sources.get(at) or format_value(value)
            hint = f'write "{source}"' if isinstance(value, (int, float)) else "give the field a name"
            if isinstance(value, dict) and "{{" in self._line(line_of(at)):
                hint = TEMPLATE_HINT
                self._sources[start(frame.places)] = "{{"  # one problem is enough
            self._refuse("SG014", at, f"a field name is text, not {source}", found=source, hint=hint)
            return _SKIP
        assert isinstance(frame.places, BlockPlaces)  # noqa: S101 - a frame with keys is a mapping
        if value in frame.places.keys:
            first = frame.places.keys[value]
            self._refuse(
                "SG013",
                at,
                f"duplicate field {format_value(value)}; the first is in line {line_of(first)}",
                path=value,
                hint="remove one of the two",
            )
            return _SKIP
        return value

    def _field(self, frame: _Frame, key: str | _Marker, value: Value, places: Places) -> None:
        block = frame.places
        assert isinstance(block, BlockPlaces)  # noqa: S101 - as above
        assert isinstance(frame.value, dict)  # noqa: S101 - as above
        if isinstance(key, str):
            frame.value[key] = value
            block.keys[key] = frame.key_at
            block.values[key] = places
        elif key is _MERGE:
            merged = list(_mergeable(value, places))
            if not merged:
                self._refuse(
                    "SG018",
                    frame.key_at,
                    "<< takes an alias of a block, or a list of such aliases",
                    found=format_value(value),
                )
            frame.merges += merged


def _is_plain(event: ScalarEvent) -> bool:
    return event.style in {None, ""}


def _mergeable(value: Value, places: Places) -> Iterator[tuple[dict[str, Value], BlockPlaces]]:
    if isinstance(value, dict) and isinstance(places, BlockPlaces):
        yield value, places
    elif isinstance(value, list) and isinstance(places, ListPlaces):
        pairs = list(zip(value, places.items, strict=True))
        if all(isinstance(one, dict) for one, _ in pairs):
            for one, place in pairs:
                yield from _mergeable(one, place)


def _merge(frame: _Frame, value: dict[str, Value], places: BlockPlaces) -> None:
    """Add the fields that are not there yet: written fields win, then the block merged first."""
    assert isinstance(frame.value, dict)  # noqa: S101 - only mappings have merges
    assert isinstance(frame.places, BlockPlaces)  # noqa: S101 - as above
    for name, one in value.items():
        if name not in frame.value:
            frame.value[name] = one
            frame.places.keys[name] = places.keys[name]
            frame.places.values[name] = places.values[name]


def resolved(text: str) -> bool | int | float | str | None:
    """The value of an unquoted scalar, by the core schema of YAML 1.2.

    Numbers with leading zeros stay text: YAML 1.1 reads ``010`` as eight, 1.2 as ten.
    """
    if text in _SPECIAL:
        return _SPECIAL[text]
    if text[0] not in _NUMERIC_START:
        return text
    if _INT.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text) and not re.match(r"[-+]?0[0-9]", text):
        return float(text)
    return text


def _syntax(error: yaml.YAMLError, text: str, first: int, lines: list[str]) -> tuple[int, Problem]:
    """The line (from 0) at which the parser stopped, and the problem."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        message = ", ".join(part for part in (error.context, error.problem) if part)
        line, column = (mark.line, mark.column) if mark else (0, 0)
    else:
        # A character YAML forbids. The position is in bytes of UTF-8.
        before = text.encode()[: getattr(error, "position", 0)].decode(errors="ignore")
        line, column = before.count("\n"), len(before) - before.rfind("\n") - 1
        message = "character not allowed in YAML"
    line = min(line + first, len(lines) - 1)
    written = lines[line]
    indent = written[: len(written) - len(written.lstrip())]
    if "\t" in indent or written[column : column + 1] == "\t":
        at = spot(line + 1, written.index("\t") + 1)
        return line, Problem(
            code="SG012",
            at=at,
            message="tab used for indentation",
            hint="indent with spaces, two per level",
        )
    hint = next((hint for sign, hint in _HINTS.items() if sign in message), "")
    if "{{" in written:
        hint = TEMPLATE_HINT
    return line, Problem(code="SG011", at=spot(line + 1, column + 1), message=f"not YAML: {message}", hint=hint)
