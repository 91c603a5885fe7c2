"""Places of documents and fields in policy files.

Places form a tree parallel to the values: a map from every path to its place costs ten times the memory for a
fleet of thousands of engines. ``Origins`` presents the tree as such a map.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

_COLUMN_BITS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Origin:
    """A place in a policy file; line and column count from 1, and are 0 for the whole file."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        """``file:line:column``, as editors and compilers write it."""
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


Spot: TypeAlias = int
"""Line and column, counted from 1, in one number, to save memory."""

WHOLE_FILE: Final[Spot] = 0


def spot(line: int, column: int) -> Spot:
    """The place at this line and column, both counted from 1."""
    return line << _COLUMN_BITS | min(column, (1 << _COLUMN_BITS) - 1)


def line_of(at: Spot) -> int:
    """The line of a place, counted from 1."""
    return at >> _COLUMN_BITS


def column_of(at: Spot) -> int:
    """The column of a place, counted from 1."""
    return at & ((1 << _COLUMN_BITS) - 1)


def origin(file: str, at: Spot) -> Origin:
    """The place ``at`` in a file."""
    return Origin(file=file, line=line_of(at), column=column_of(at))


@dataclass(slots=True)
class BlockPlaces:
    """Places of a mapping, its keys and their values."""

    at: Spot
    keys: dict[str, Spot] = field(default_factory=dict)
    values: dict[str, "Places"] = field(default_factory=dict)


@dataclass(slots=True)
class ListPlaces:
    """Places of a list and its items."""

    at: Spot
    items: list["Places"] = field(default_factory=list)


Places: TypeAlias = Spot | BlockPlaces | ListPlaces

Step: TypeAlias = str | int
"""One step of a path: a field's name or the number of a list item."""


def start(places: Places) -> Spot:
    """The place where a value begins."""
    return places if isinstance(places, int) else places.at


def nearest(places: Places, steps: Sequence[Step], *, key: bool = False) -> Spot:
    """The place of the value at ``steps``, or with ``key`` of its name; else the nearest enclosing place."""
    at = start(places)
    for step in steps:
        if isinstance(places, BlockPlaces) and isinstance(step, str) and step in places.values:
            named, places = places.keys[step], places.values[step]
            at = named if key else start(places)
        elif isinstance(places, ListPlaces) and isinstance(step, int) and step < len(places.items):
            places = places.items[step]
            at = start(places)
        else:
            break
    return at


def path_text(steps: Sequence[Step]) -> str:
    """``spec.endpoints[3].port``."""
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def path_steps(text: str) -> tuple[Step, ...]:
    """The steps of ``spec.endpoints[3].port``."""
    steps: list[Step] = []
    for part in text.replace("[", ".[").split("."):
        if part.startswith("[") and part.endswith("]") and part[1:-1].isdecimal():
            steps.append(int(part[1:-1]))
        elif part:
            steps.append(part)
    return tuple(steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentPlaces:
    """The file of a document and the tree of its places."""

    file: str
    places: Places


class Origins(Mapping[str, Origin]):
    """Places by ``Kind/name`` and ``Kind/name.spec.field[0].path``.

    A field's place is that of its name; a list item's is where the item begins. Labels with dots or brackets in
    their names have no path; use ``metadata.labels``.
    """

    def __init__(self, documents: Mapping[str, DocumentPlaces]) -> None:
        """Read ``documents``, keyed by ``Kind/name``."""
        self._documents = documents

    def __getitem__(self, key: str) -> Origin:
        """The place of this document or field; KeyError where it is not written."""
        name, _, path = key.partition(".")
        document = self._documents[name]
        places = document.places
        at = start(places)
        for step in path_steps(path):
            if isinstance(places, BlockPlaces) and isinstance(step, str):
                at, places = places.keys[step], places.values[step]
            elif isinstance(places, ListPlaces) and isinstance(step, int) and step < len(places.items):
                places = places.items[step]
                at = start(places)
            else:
                raise KeyError(key)
        return origin(document.file, at)

    def __iter__(self) -> Iterator[str]:
        """Every key, document by document, depth first."""
        for name, document in self._documents.items():
            yield name
            for path in _paths(document.places):
                yield f"{name}.{path}"

    def __len__(self) -> int:
        """The number of written documents and fields."""
        return sum(1 for _ in self)


def _paths(places: Places, prefix: str = "") -> Iterator[str]:
    if isinstance(places, BlockPlaces):
        for name, inner in places.values.items():
            if any(mark in name for mark in ".[]"):
                continue
            path = f"{prefix}.{name}" if prefix else name
            yield path
            yield from _paths(inner, path)
    elif isinstance(places, ListPlaces):
        for number, inner in enumerate(places.items):
            yield f"{prefix}[{number}]"
            yield from _paths(inner, f"{prefix}[{number}]")
