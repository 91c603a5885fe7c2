"""Which version of each policy object is served, and why not the newest. Pure.

One bad object never stops the others: it is served as it was last accepted, or left out, and so is whatever no
longer resolves because of that. First stands what was accepted before; then newer versions are let in, all at once
where they agree, else one by one from the oldest object on. So an edit that contradicts what is served does not
take it away. Of two objects of one kind and name the older stays.

The outcome follows from the versions alone, whatever the order they came in.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from policies.findings import PolicyError
from policies.load import ValidatedFile
from policies.origin import WHOLE_FILE, origin
from policies.relations import LocatedDocument, reference_contradictions
from policies.validated_document import ValidatedDocument


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecVersion:
    """One spec of an object, as a document and as it was judged by itself.

    ``flaws`` are why it cannot be taken up here though it is well in itself.
    """

    spec: str
    text: str
    judged: ValidatedFile
    flaws: tuple[PolicyError, ...] = ()

    @property
    def document(self) -> ValidatedDocument | None:
        """The document, None where it is not sound by itself, or cannot be taken up."""
        documents = self.judged.documents
        return documents[0] if len(documents) == 1 and not (self.judged.problems or self.flaws) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectVersions:
    """An object with its newest version and, where that was not it, the one that was last accepted."""

    file: str
    kind: str
    namespace: str
    name: str
    newest: SpecVersion
    accepted: SpecVersion | None = None

    @property
    def baseline(self) -> SpecVersion | None:
        """What stands before anything new is tried: what was accepted, else the newest; None: neither is sound."""
        return next((one for one in (self.accepted, self.newest) if one is not None and one.document), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSelection:
    """What is served of each file that is, and why it is not the newest of each file where it is not."""

    served: Mapping[str, SpecVersion]
    problems: Mapping[str, tuple[PolicyError, ...]]

    def files(self) -> Mapping[Path, ValidatedFile]:
        """What is served, as files that were judged."""
        return {Path(file): self.served[file].judged for file in sorted(self.served)}


_Served: TypeAlias = dict[str, SpecVersion]
_Trouble: TypeAlias = Callable[[Mapping[str, SpecVersion]], tuple[PolicyError, ...]]


def select_versions(candidates: Sequence[ObjectVersions]) -> VersionSelection:
    """The outcome for these objects, which come from the oldest to the newest."""
    named, problems = _named(candidates)
    order = {one.file: number for number, one in enumerate(named)}

    def trouble(served: Mapping[str, SpecVersion]) -> tuple[PolicyError, ...]:
        placed = (
            LocatedDocument(file=file, document=document)
            for file in sorted(served, key=order.__getitem__)
            if (document := served[file].document) is not None
        )
        return tuple(reference_contradictions(tuple(placed), complete=True))

    served = _raised(named, _agreeing({one.file: one.baseline for one in named if one.baseline}, trouble), trouble)
    for one in named:
        if served.get(one.file) is not one.newest:
            own = tuple(problem.error(one.file) for problem in one.newest.judged.problems) or one.newest.flaws
            problems[one.file] = own or trouble({**served, one.file: one.newest}) or (_broken(one),)
    return VersionSelection(served=MappingProxyType(served), problems=MappingProxyType(problems))


def _named(
    candidates: Sequence[ObjectVersions],
) -> tuple[tuple[ObjectVersions, ...], dict[str, tuple[PolicyError, ...]]]:
    """The objects whose name is theirs, and why the others' is not."""
    first: dict[tuple[str, str], ObjectVersions] = {}
    problems: dict[str, tuple[PolicyError, ...]] = {}
    for one in candidates:
        older = first.setdefault((one.kind, one.name), one)
        if older is not one:
            error = PolicyError(
                code="SG030",
                origin=origin(one.file, WHOLE_FILE),
                path="metadata.name",
                message=f"there is an older {one.kind} named {one.name}, in namespace {older.namespace}",
                found=one.name,
                hint="names are unique over all namespaces that are watched: rename one of the two",
            )
            problems[one.file] = (error,)
    return tuple(first.values()), problems


def _agreeing(served: _Served, trouble: _Trouble) -> _Served:
    """As many of these as agree with each other: what contradicts another, or refers to nothing, goes."""
    while errors := trouble(served):
        wrong = {error.origin.file for error in errors}
        served = {file: version for file, version in served.items() if file not in wrong}
    return served


def _raised(named: Sequence[ObjectVersions], served: _Served, trouble: _Trouble) -> _Served:
    """With as many newer versions as agree with what is served."""
    newer = {
        one.file: one.newest for one in named if one.newest.document and served.get(one.file) is not one.newest
    }
    if newer and not trouble(together := {**served, **newer}):
        return together
    again = True
    while again:
        again = False
        for one in named:
            choices = (one.newest, one.baseline) if one.file not in served else (one.newest,)
            for version in choices:
                if version is None or not version.document or served.get(one.file) is version:
                    continue
                if not trouble(tried := {**served, one.file: version}):
                    served, again = tried, True
                    break
    return served


def _broken(one: ObjectVersions) -> PolicyError:
    return PolicyError(
        code="SG020",
        origin=origin(one.file, WHOLE_FILE),
        message="this is not one policy document",
        hint="an object holds one document: apiVersion, kind, metadata and spec",
    )
