"""Files of other tools as documents that remember what was taken of them.

A ``SourceNode`` is a value and its place. A translator takes the nodes that it understands and says of others why
it does not; whatever is left when it is done was not understood either, and ``SourceDocument.remarks`` lists it.
So nothing can be dropped without a word, also what a translator has never heard of.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from istio.imports.import_remarks import ImportRemark, RemarkKind
from policies.findings import PolicyError, PolicyErrors, Problem, format_value
from policies.origin import WHOLE_FILE, Origin, Places, Step, nearest, origin, path_text, start
from policies.policy_files import MAX_FILE_BYTES, decode_text, read
from policies.yaml_text import Value, parse

STDIN: Final = "-"
_HIDDEN: Final = "(hidden)"
_CONFIDENTIAL: Final = re.compile(r"(api_?key|token|password|secret)$", re.IGNORECASE)
_UNKNOWN: Final = "no equivalent in Switchgear"


@dataclass(slots=True)
class SourceDocument:
    """One document of a file, and what became of its fields. ``label`` is ``Kind/name`` where it has them."""

    file: str
    value: Value
    places: Places
    label: str = ""
    _taken: set[tuple[Step, ...]] = field(default_factory=set)
    _refused: dict[tuple[Step, ...], str] = field(default_factory=dict)
    _changed: dict[tuple[Step, ...], list[str]] = field(default_factory=dict)
    _left_as_is: dict[tuple[Step, ...], str] = field(default_factory=dict)
    _around: set[tuple[Step, ...]] | None = None

    @property
    def root(self) -> "SourceNode":
        """The document as a whole."""
        return SourceNode(source=self, steps=(), value=self.value)

    def at(self, steps: tuple[Step, ...], *, key: bool = True) -> Origin:
        """Where a field stands."""
        return origin(self.file, nearest(self.places, steps, key=key))

    def take(self, steps: tuple[Step, ...]) -> None:
        """The field, and all within it, is understood."""
        self._taken.add(steps)

    def was_taken(self, steps: tuple[Step, ...]) -> bool:
        """Whether the field was taken as a whole."""
        return steps in self._taken

    def refuse(self, steps: tuple[Step, ...], why: str) -> None:
        """The field, and all within it, is not understood; the first reason stays."""
        self._refused.setdefault(steps, why)

    def change(self, steps: tuple[Step, ...], how: str) -> None:
        """The field is understood, and means something a little different from now on."""
        self._taken.add(steps)
        said = self._changed.setdefault(steps, [])
        if how not in said:
            said.append(how)

    def leave(self, steps: tuple[Step, ...], why: str) -> None:
        """The field, and all within it, needs no policy; the first reason stays."""
        self._taken.add(steps)
        self._left_as_is.setdefault(steps, why)

    def listed(self, steps: tuple[Step, ...]) -> bool:
        """Whether a remark covers the field."""
        named = {*self._refused, *self._changed, *self._left_as_is, *self._unknown(self.value, ())}
        return any(steps[:end] in named for end in range(len(steps) + 1))

    def remarks(self) -> Iterator[ImportRemark]:
        """Everything to know about this document, in the order of its lines."""
        found = [self._remark(steps, RemarkKind.NOT_UNDERSTOOD, why) for steps, why in self._refused.items()]
        found += [
            self._remark(steps, RemarkKind.CHANGED, how) for steps, hows in self._changed.items() for how in hows
        ]
        found += [
            self._remark(steps, RemarkKind.NOT_UNDERSTOOD, _UNKNOWN) for steps in self._unknown(self.value, ())
        ]
        yield from sorted((*found, *self._leftovers()))

    def _leftovers(self) -> Iterator[ImportRemark]:
        """One remark for all fields of a block that are left for the same reason."""
        blocks: dict[tuple[tuple[Step, ...], str], list[tuple[Step, ...]]] = {}
        for steps, why in self._left_as_is.items():
            blocks.setdefault((steps[:-1], why), []).append(steps)
        for (block, why), fields in blocks.items():
            names = [str(steps[-1]) for steps in fields if steps and isinstance(steps[-1], str)]
            if len(fields) == 1:
                found = self._remark(fields[0], RemarkKind.LEFT, why)
            else:
                found = self._remark(block, RemarkKind.LEFT, f"{why}: {', '.join(names)}" if names else why)
            # Their values matter to no policy, and some are confidential.
            yield replace(found, value="")

    def _unknown(self, value: Value, steps: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
        """The outermost fields without an imported or refused part."""
        if steps in self._taken or (steps and steps in self._refused):
            return
        if steps and not self._touched(steps):
            yield steps
        elif isinstance(value, dict):
            for name, inner in value.items():
                yield from self._unknown(inner, (*steps, name))
        elif isinstance(value, list):
            for number, inner in enumerate(value):
                yield from self._unknown(inner, (*steps, number))

    def _touched(self, steps: tuple[Step, ...]) -> bool:
        """Whether anything within the field was taken or refused."""
        if self._around is None:
            self._around = {one[:end] for one in (*self._taken, *self._refused) for end in range(len(one))}
        return steps in self._around

    def _remark(self, steps: tuple[Step, ...], sort: RemarkKind, why: str) -> ImportRemark:
        value: Value = self.value
        for step in steps:
            if isinstance(value, dict) and isinstance(step, str):
                value = value.get(step)
            elif isinstance(value, list) and isinstance(step, int) and step < len(value):
                value = value[step]
            else:
                value = None
                break
        said = "" if isinstance(value, (dict, list)) and not steps else format_value(value)
        if steps and isinstance(value, str) and _CONFIDENTIAL.search(str(steps[-1])):
            said = _HIDDEN
        return ImportRemark(
            origin=self.at(steps), sort=sort, document=self.label, path=path_text(steps), value=said, why=why
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceNode:
    """A value in a document, and where it stands."""

    source: SourceDocument
    steps: tuple[Step, ...]
    value: Value

    def get(self, name: str) -> "SourceNode | None":
        """The field of this name; None where there is none, or where it is left empty."""
        if isinstance(self.value, dict) and name in self.value:
            inner = SourceNode(source=self.source, steps=(*self.steps, name), value=self.value[name])
            if inner.value is not None:
                return inner
            inner.take()
        return None

    def at(self, *names: str) -> "SourceNode | None":
        """The field at the end of these names."""
        found: SourceNode | None = self
        for name in names:
            found = found.get(name) if found is not None else None
        return found

    def items(self) -> tuple["SourceNode", ...]:
        """The items of a list; of anything else none, and it is listed as wrong."""
        if not isinstance(self.value, list):
            self.refuse("not a list")
            return ()
        return tuple(
            SourceNode(source=self.source, steps=(*self.steps, number), value=one)
            for number, one in enumerate(self.value)
        )

    def fields(self) -> tuple[tuple[str, "SourceNode"], ...]:
        """The fields of a block by name; of anything else none, and it is listed as wrong."""
        if not isinstance(self.value, dict):
            self.refuse("not a mapping")
            return ()
        return tuple(
            (name, SourceNode(source=self.source, steps=(*self.steps, name), value=one))
            for name, one in self.value.items()
        )

    def take(self) -> None:
        """This is understood, with all that is in it."""
        self.source.take(self.steps)

    @property
    def taken(self) -> bool:
        """Whether it is known to be understood."""
        return self.source.was_taken(self.steps)

    def refuse(self, why: str) -> None:
        """This is not understood."""
        self.source.refuse(self.steps, why)

    def leave(self, why: str) -> None:
        """This needs no policy: what it sets stays as it is, or makes no difference."""
        self.source.leave(self.steps, why)

    def change(self, how: str) -> None:
        """This is understood, and means something a little different from now on."""
        self.source.change(self.steps, how)

    @property
    def text_value(self) -> str:
        """The value where it is text; empty where it is anything else."""
        return self.value if isinstance(self.value, str) else ""

    @property
    def origin(self) -> Origin:
        """Where it stands."""
        return self.source.at(self.steps)

    @property
    def place(self) -> str:
        """``file:line``, for a comment."""
        where = self.origin
        return f"{where.file}:{where.line}" if where.line else where.file


def source_documents(paths: Sequence[str], noun: str) -> tuple[SourceDocument, ...]:
    """Every document of these files, ``-`` being stdin; raises ``PolicyErrors`` with all that is in the way.

    A ``List`` counts as its items. ``noun`` is what such a file is called (``values``).
    """
    errors: list[PolicyError] = []
    sources: list[SourceDocument] = []
    for path in paths:
        content = _content(path, noun)
        text = decode_text(content) if isinstance(content, bytes) else content
        name = "stdin" if path == STDIN else path
        if isinstance(text, Problem):
            errors.append(text.error(name))
            continue
        parsed = parse(text)
        errors += [problem.error(name) for problem in parsed.problems]
        found = [
            source
            for raw in parsed.documents
            if raw.value is not None
            for source in _unlisted(SourceDocument(file=name, value=raw.value, places=raw.places))
        ]
        if not found and not parsed.problems:
            errors.append(Problem(code="SG006", at=WHOLE_FILE, message=f"the {noun} file is empty").error(name))
        sources += found
    if errors:
        raise PolicyErrors.of(errors, noun)
    return tuple(sources)


def _content(path: str, noun: str) -> bytes | Problem:
    if path != STDIN:
        return read(Path(path), noun)
    content = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
    if len(content) <= MAX_FILE_BYTES:
        return content
    return Problem(
        code="SG005",
        at=WHOLE_FILE,
        message=f"the {noun} file is too large",
        allowed=f"at most {MAX_FILE_BYTES // 1024 // 1024} MiB",
    )


def _unlisted(source: SourceDocument) -> Iterator[SourceDocument]:
    """The document, or the items of a Kubernetes list (``kubectl get -o yaml`` writes one)."""
    items = source.value.get("items") if isinstance(source.value, dict) else None
    kind = source.value.get("kind") if isinstance(source.value, dict) else None
    if not (isinstance(kind, str) and kind.endswith("List") and isinstance(items, list)):
        yield source
        return
    places = getattr(source.places, "values", {}).get("items")
    for number, item in enumerate(items):
        inner = (
            places.items[number] if places is not None and not isinstance(places, int) else start(source.places)
        )
        yield SourceDocument(file=source.file, value=item, places=inner)
