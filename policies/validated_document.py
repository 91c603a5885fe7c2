"""Validate one parsed policy document: its model or its problems, and the pools it refers to."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, cast

from policies.document import API_VERSION
from policies.findings import Problem
from policies.model import KINDS, Document
from policies.origin import Places, Spot, Step, nearest, path_text
from policies.validation import Steps, Vocabulary, validate_document
from policies.yaml_text import RawDocument, Value

POLICIES: Final = Vocabulary(
    noun="policy document",
    kinds=KINDS,
    elsewhere={"Scenario": "run a scenario with `switchgear-chaos run`"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedDocument:
    """A document with kind and name; ``model`` is None if it has other problems.

    ``pools`` are the pools it refers to and where, known even then, so that wrong names are reported at once.
    ``digest`` is a hash of its values, independent of layout, comments and the version it is written in.
    """

    kind: str
    name: str
    model: Document | None
    places: Places
    digest: str
    api_version: str
    pools: tuple[tuple[Steps, str], ...] = ()

    @property
    def key(self) -> str:
        """``Kind/name``."""
        return f"{self.kind}/{self.name}"

    def at(self, *steps: Step, key: bool = False) -> Spot:
        """The place of a field in the document."""
        return nearest(self.places, steps, key=key)


def validate_policy(raw: RawDocument) -> tuple[ValidatedDocument | None, tuple[Problem, ...]]:
    """The document, if it has kind and name, and all its problems."""
    found = validate_document(raw, POLICIES)
    name = _name(raw.value)
    if not found.kind or name is None or not isinstance(raw.value, dict):
        return None, found.problems
    document = ValidatedDocument(
        kind=found.kind,
        name=name,
        model=cast("Document | None", found.model),
        places=raw.places,
        digest=_digest({**raw.value, "apiVersion": API_VERSION}),
        api_version=str(raw.value.get("apiVersion")),
        pools=tuple(_pools(raw.value, {problem.path for problem in found.problems})),
    )
    return document, found.problems


def _digest(value: dict[str, Value]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _pools(value: dict[str, Value], wrong: set[str]) -> Iterator[tuple[Steps, str]]:
    """Pools that a route or a policy refers to, except invalid names."""
    spec = value.get("spec")
    if not isinstance(spec, dict):
        return
    listed, fallbacks = spec.get("pools"), spec.get("fallbacks")
    found: list[tuple[Steps, Value]] = [
        (("spec", "fallbacks", number), one)
        for number, one in enumerate(fallbacks if isinstance(fallbacks, list) else ())
    ]
    if isinstance(prefill := spec.get("prefill"), dict):
        found.append((("spec", "prefill", "pool"), prefill.get("pool")))
    for number, one in enumerate(listed if isinstance(listed, list) else ()):
        steps: Steps = ("spec", "pools", number)
        found.append(((*steps, "pool"), one.get("pool")) if isinstance(one, dict) else (steps, one))
    yield from ((steps, name) for steps, name in found if isinstance(name, str) and path_text(steps) not in wrong)


def _name(value: Value) -> str | None:
    metadata = value.get("metadata") if isinstance(value, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else None
