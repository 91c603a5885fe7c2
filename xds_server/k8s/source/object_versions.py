"""Selects the served version of each policy object, and reports why it is not the latest. Pure.

One invalid object never stops the others: it is served as last accepted, or omitted, along with objects whose
references then fail. The accepted versions are the baseline; newer versions are admitted, all at once if
consistent, else one by one from the oldest object. So an edit that contradicts a served object does not replace
it. Of two objects of one kind and name the older stays.

The outcome depends on the versions only, not on their order of arrival.
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
    """One spec of an object, as a document and its validation.

    ``flaws``: why it cannot be served here although it is valid.
    """

    spec: str
    text: str
    judged: ValidatedFile
    flaws: tuple[PolicyError, ...] = ()

    @property
    def document(self) -> ValidatedDocument | None:
        """The document; None if invalid or not servable."""
        documents = self.judged.documents
        return documents[0] if len(documents) == 1 and not (self.judged.problems or self.flaws) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectVersions:
    """An object with its latest version and, if different, the last accepted one."""

    file: str
    kind: str
    namespace: str
    name: str
    newest: SpecVersion
    accepted: SpecVersion | None = None

    @property
    def baseline(self) -> SpecVersion | None:
        """Version before newer ones are admitted: the accepted one, else the latest; None if neither is valid."""
        return next((one for one in (self.accepted, self.newest) if one is not None and one.document), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSelection:
    """Served version of each file, and why it is not the latest."""

    served: Mapping[str, SpecVersion]
    problems: Mapping[str, tuple[PolicyError, ...]]

    def files(self) -> Mapping[Path, ValidatedFile]:
        """The served files with their validation."""
        return {Path(file): self.served[file].judged for file in sorted(self.served)}


_Served: TypeAlias = dict[str, SpecVersion]
_Trouble: TypeAlias = Callable[[Mapping[str, SpecVersion]], tuple[PolicyError, ...]]


def select_versions(candidates: Sequence[ObjectVersions]) -> VersionSelection:
    """Select versions of these objects, ordered from oldest to newest."""
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
    """Objects that own their name, and the problem of each duplicate."""
    first: dict[tuple[str, str], ObjectVersions] = {}
    problems: dict[str, tuple[PolicyError, ...]] = {}
    for one in candidates:
        older = first.setdefault((one.kind, one.name), one)
        if older is not one:
            error = PolicyError(
                code="SG030",
                origin=origin(one.file, WHOLE_FILE),
                path="metadata.name",
                message=f"an older {one.kind} named {one.name} exists in namespace {older.namespace}",
                found=one.name,
                hint="names are unique across all watched namespaces: rename one of the two",
            )
            problems[one.file] = (error,)
    return tuple(first.values()), problems


def _agreeing(served: _Served, trouble: _Trouble) -> _Served:
    """The largest consistent set: drops documents that contradict others or have dangling references."""
    while errors := trouble(served):
        wrong = {error.origin.file for error in errors}
        served = {file: version for file, version in served.items() if file not in wrong}
    return served


def _raised(named: Sequence[ObjectVersions], served: _Served, trouble: _Trouble) -> _Served:
    """Add newer versions that are consistent with the served ones."""
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
        message="not exactly one policy document",
        hint="an object must hold one document: apiVersion, kind, metadata and spec",
    )
