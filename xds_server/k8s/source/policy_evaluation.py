"""Evaluates policy objects and discovered engines: the served state, and the state of each object.

Remembers the last accepted spec of each object. A status about the latest generation overrides it: only the
leader writes status, so all replicas serve the same.

A spec with an unusable secret is not admitted and does not affect others. A spec in force stays: accepted
policies are not removed because of a secrets folder.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from policies.discovery import engine_finding, rejected_object_finding
from policies.engine_tls import POOL_SECRET, SecretError
from policies.findings import Finding, PolicyError, PolicyErrors
from policies.load import LoadCache, ValidatedFile, load_validated
from policies.model import PolicySet
from policies.origin import WHOLE_FILE, origin, path_steps
from policies.pool import EnginePool
from policies.route import ModelRoute
from xds_server.k8s.policy_object import PolicyObject
from xds_server.k8s.source.endpoint_entry import EndpointEntry
from xds_server.k8s.source.object_versions import ObjectVersions, SpecVersion, VersionSelection, select_versions
from xds_server.k8s.source.policy_manifest import PolicyManifest, document_text, texts_digest
from xds_server.model.policy_state import AcceptedPolicies, PolicyState, RejectedPolicies

_Written: TypeAlias = Mapping[Path, tuple[str, str, tuple[str, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedSpec:
    """One version of an object, with the engines its block finds and remarks about them."""

    spec: str
    entries: tuple[EndpointEntry, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEvaluation:
    """The policy state, the state of each object, and the served spec by file."""

    state: PolicyState
    objects: tuple[PolicyObject, ...]
    served: Mapping[str, str]


class PolicyEvaluator:
    """Evaluates one set of objects after another. Not thread-safe."""

    def __init__(self, secret_error: SecretError = lambda _name, _at, _path: None) -> None:
        self._secret_error = secret_error
        self._cache = LoadCache()
        self._accepted: dict[str, str] = {}

    def specs(self, held: PolicyManifest) -> tuple[str, ...]:
        """Relevant specs of an object: the latest and, if any, the last accepted."""
        known = self._accepted.get(held.uid, "")
        current = held.observed == held.generation
        earlier = (held.last_accepted or known) if current else (known or held.last_accepted)
        return (held.spec, earlier) if earlier and not _same(earlier, held.spec) else (held.spec,)

    def evaluate(self, objects: Mapping[PolicyManifest, Sequence[OfferedSpec]]) -> PolicyEvaluation:
        """Evaluate these objects, each with the versions returned by ``specs``."""
        ordered = sorted(objects, key=lambda held: held.precedence)
        written: dict[Path, tuple[str, str, tuple[str, ...]]] = {}
        for held in ordered:
            for number, offer in enumerate(objects[held]):
                text, left_out = document_text(held, offer.spec, offer.entries)
                written[_path(held, number)] = (offer.spec, text, (*offer.remarks, *left_out))
        judged = self._cache.validated({path: text.encode() for path, (_, text, _) in written.items()})
        admission = select_versions([self._candidate(held, written, judged) for held in ordered])
        remarks = {
            held.file: written[_path(held, number)][2]
            for held in ordered
            for number, offer in enumerate(objects[held])
            if (version := admission.served.get(held.file)) is not None and version.spec == offer.spec
        }
        for held in ordered:
            served = admission.served.get(held.file)
            if served is not None:
                self._accepted[held.uid] = served.spec
        alive = {held.uid for held in ordered}
        self._accepted = {uid: spec for uid, spec in self._accepted.items() if uid in alive}
        became = tuple(self._became(held, admission) for held in sorted(ordered, key=lambda one: one.file))
        return PolicyEvaluation(
            state=_state(admission, became, remarks),
            objects=became,
            served={file: version.spec for file, version in admission.served.items()},
        )

    def _candidate(
        self, held: PolicyManifest, written: _Written, judged: Mapping[Path, ValidatedFile]
    ) -> ObjectVersions:
        newest, *accepted = (
            SpecVersion(spec=written[path][0], text=written[path][1], judged=judged[path])
            for path in (_path(held, 0), _path(held, 1))
            if path in written
        )
        if not self._is_in_use(held):
            newest = replace(newest, flaws=self._flaws(held, newest))
        return ObjectVersions(
            file=held.file,
            kind=held.kind,
            namespace=held.namespace,
            name=held.name,
            newest=newest,
            accepted=accepted[0] if accepted else None,
        )

    def _is_in_use(self, held: PolicyManifest) -> bool:
        """Whether the latest spec is served; after a start, according to its status."""
        known = self._accepted.get(held.uid)
        return held.accepted if known is None else _same(known, held.spec)

    def _flaws(self, held: PolicyManifest, version: SpecVersion) -> tuple[PolicyError, ...]:
        document = version.document
        match None if document is None else document.model:
            case EnginePool(spec=pool) if pool.tls is not None:
                named: tuple[tuple[str, str], ...] = ((POOL_SECRET, pool.tls.secret),)
            case ModelRoute(spec=route):
                named = tuple(route.listener.named_secrets())
            case _:
                return ()
        assert document is not None  # noqa: S101 -- it has a model
        errors = (
            self._secret_error(secret, origin(held.file, document.at(*path_steps(path))), path)
            for path, secret in named
        )
        return tuple(one for one in errors if one is not None)

    def _became(self, held: PolicyManifest, admission: VersionSelection) -> PolicyObject:
        served = admission.served.get(held.file)
        problems = admission.problems.get(held.file, ())
        earlier = self.specs(held)[1:]
        return PolicyObject(
            kind=held.kind,
            namespace=held.namespace,
            name=held.name,
            uid=held.uid,
            generation=held.generation,
            resource_version=held.resource_version,
            file=held.file,
            problems=problems,
            serving=served is not None,
            last_accepted=(served.spec if served is not None else "".join(earlier)) if problems else "",
        )


def _path(held: PolicyManifest, number: int) -> Path:
    return Path(held.file if number == 0 else f"{held.file}#accepted")


def _state(
    admission: VersionSelection, became: Sequence[PolicyObject], remarks: Mapping[str, tuple[str, ...]]
) -> PolicyState:
    texts = {file: admission.served[file].text for file in sorted(admission.served)}
    findings = tuple(_findings(became, remarks))
    digest = texts_digest(texts, *(f"{one.origin}{one.message}" for one in findings))
    if not texts:
        errors = tuple(error for one in became for error in one.problems) or (_nothing(),)
        return RejectedPolicies(errors=errors, digest=digest)
    try:
        policies = load_validated(admission.files())
    except PolicyErrors as refusal:
        # Versions admitted one by one must be consistent; should that fail, keep the state and report it.
        errors = tuple(error for error in refusal.exceptions if isinstance(error, PolicyError))
        return RejectedPolicies(errors=errors, digest=digest)
    return AcceptedPolicies(policies=_remarked(policies, findings), texts=texts, digest=digest)


def _remarked(policies: PolicySet, findings: tuple[Finding, ...]) -> PolicySet:
    return replace(policies, remarks=(*policies.remarks, *findings)) if findings else policies


def _findings(became: Sequence[PolicyObject], remarks: Mapping[str, tuple[str, ...]]) -> list[Finding]:
    found = [engine_finding(file, remark) for file in sorted(remarks) for remark in remarks[file]]
    found += [
        rejected_object_finding(one.file, one.problems[0], serving=one.serving) for one in became if one.problems
    ]
    return found


def _nothing() -> PolicyError:
    return PolicyError(
        code="SG006",
        origin=origin("cluster", WHOLE_FILE),
        message="the cluster has no policy object to serve",
        hint="apply an EnginePool, or check the watched namespaces and selector",
    )


def _same(one: str, other: str) -> bool:
    if one == other:
        return True
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False
