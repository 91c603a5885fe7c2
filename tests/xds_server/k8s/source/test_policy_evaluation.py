"""Served versions of many objects: one invalid object blocks no other, and all replicas agree."""

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import load
from policies.engine_tls import unusable_secret
from policies.findings import PolicyError
from policies.load import load_contents
from policies.origin import Origin
from xds_server.k8s.policy_object import PolicyObject
from xds_server.k8s.source.endpoint_entry import EndpointEntry
from xds_server.k8s.source.policy_evaluation import OfferedSpec, PolicyEvaluation, PolicyEvaluator
from xds_server.k8s.source.policy_manifest import PolicyManifest, document_text, manifest_reader
from xds_server.model.policy_state import AcceptedPolicies, RejectedPolicies

Json = dict[str, Any]


def held(
    kind: str,
    name: str,
    spec: Any,
    *,
    namespace: str = "ns",
    generation: int = 1,
    created: str = "2026-01-01T00:00:00Z",
    status: Json | None = None,
    **metadata: Any,
) -> PolicyManifest:
    """A policy object."""
    about = {
        "name": name,
        "namespace": namespace,
        "uid": f"{namespace}-{kind}-{name}",
        "generation": generation,
        "creationTimestamp": created,
        **metadata,
    }
    return manifest_reader(kind)({"metadata": about, "spec": spec, **({"status": status} if status else {})})


def pool(name: str = "chat", *, spec: Json | None = None, **more: Any) -> PolicyManifest:
    endpoints = [{"address": "10.0.0.1", "port": 80}, {"address": "10.0.0.2", "port": 80}]
    return held("EnginePool", name, {"model": "m", "endpoints": endpoints, **(spec or {})}, **more)


def route(name: str = "front", to: str = "chat", port: int = 10000, **more: Any) -> PolicyManifest:
    return held("ModelRoute", name, {"listener": {"port": port}, "pools": [{"pool": to}]}, **more)


def policy(name: str, *pools: str, spec: Json | None = None, **more: Any) -> PolicyManifest:
    return held("ResiliencePolicy", name, {**({"pools": list(pools)} if pools else {}), **(spec or {})}, **more)


def judged(judge: PolicyEvaluator, *objects: PolicyManifest) -> PolicyEvaluation:
    return judge.evaluate({one: [OfferedSpec(spec=spec) for spec in judge.specs(one)] for one in objects})


def became(outcome: PolicyEvaluation, name: str) -> PolicyObject:
    return next(one for one in outcome.objects if one.name == name)


def codes(outcome: PolicyEvaluation, name: str) -> list[str]:
    return [error.code for error in became(outcome, name).problems]


def accepted(outcome: PolicyEvaluation) -> AcceptedPolicies:
    assert isinstance(outcome.state, AcceptedPolicies), outcome.state
    return outcome.state


# -- documents -------------------------------------------------------------------------------------------------


def test_object_document_equals_file_content() -> None:
    one = pool(
        labels={"team": "a"},
        annotations={"kubectl.kubernetes.io/last-applied-configuration": "{}", "why": "because"},
        managedFields=[{"manager": "kubectl"}],
        resourceVersion="7",
        finalizers=["x"],
    )
    text, _ = document_text(one, one.spec, ())
    assert json.loads(text) == {
        "apiVersion": "switchgear.dev/v1alpha1",
        "kind": "EnginePool",
        "metadata": {
            "name": "chat",
            "namespace": "ns",
            "labels": {"team": "a"},
            "annotations": {"why": "because"},
        },
        "spec": json.loads(one.spec),
    }


def test_discovered_engines_follow_listed_ones() -> None:
    one = pool()
    entries = [
        EndpointEntry({"name": name, "address": address, "port": 80})
        for name, address in (("a", "10.0.0.3"), ("10.0.0.1:80", "10.0.0.9"), ("c", "10.0.0.2"))
    ]
    by_hand = pool(spec={"endpoints": [{"address": "10.0.0.2", "port": 80, "name": "a"}]})
    text, left_out = document_text(one, one.spec, entries)
    assert [item.get("name") for item in json.loads(text)["spec"]["endpoints"]] == [None, None, "a", "10.0.0.1:80"]
    assert left_out == ("c is left out: already listed in spec.endpoints",)
    text, left_out = document_text(by_hand, by_hand.spec, entries)
    assert [item["name"] for item in json.loads(text)["spec"]["endpoints"]] == ["a", "10.0.0.1:80"]
    assert len(left_out) == 2


@pytest.mark.parametrize(
    "text", ["\u2028", "\x7f", "\x85", "\U0001f600", "\ufeff", "tab\t", "line\nbreak", "ä: {b", "\ud800"]
)
def test_arbitrary_object_text_is_a_valid_document(text: str) -> None:
    outcome = judged(PolicyEvaluator(), pool(annotations={"note": text}), pool("other"))
    if text == "\ud800":  # half a surrogate pair, which no file could contain
        assert (codes(outcome, "other"), became(outcome, "chat").serving) == ([], False)
    else:
        assert codes(outcome, "chat") == []
        assert accepted(outcome).policies.pools["chat"].metadata.annotations["note"] == text


def test_arbitrary_spec_does_not_affect_other_objects() -> None:
    for spec in (None, 7, "text", [], {}, {"endpoints": 7, "model": "m"}, {"kubernetes": []}):
        outcome = judged(PolicyEvaluator(), held("EnginePool", "odd", spec), pool())
        assert not became(outcome, "odd").serving
        assert became(outcome, "odd").problems
        assert list(accepted(outcome).policies.pools) == ["chat"]


# -- last accepted version -------------------------------------------------------------------------------------


def test_invalid_object_is_served_as_last_accepted() -> None:
    judge = PolicyEvaluator()
    judged(judge, pool(), route())
    outcome = judged(judge, pool(spec={"slotsPerEngine": 0}, generation=2), route())
    one = became(outcome, "chat")
    assert [error.code for error in one.problems] == ["SG026"]
    assert (one.serving, one.problems[0].path, one.generation) == (True, "spec.slotsPerEngine", 2)
    assert json.loads(one.last_accepted) == json.loads(pool().spec)
    assert accepted(outcome).policies.pools["chat"].spec.slots_per_engine == 8
    assert [one.code for one in accepted(outcome).policies.remarks] == ["SG151"]
    assert list(accepted(outcome).policies.routes) == ["front"]


def test_invalid_new_object_and_its_dependents_are_omitted() -> None:
    outcome = judged(
        PolicyEvaluator(), pool(spec={"slotsPerEngine": 0}), route(), pool("other"), route("b", "other", 10001)
    )
    assert not became(outcome, "chat").serving
    assert codes(outcome, "front") == ["SG031"]
    assert not became(outcome, "front").serving
    assert (list(accepted(outcome).policies.pools), list(accepted(outcome).policies.routes)) == (["other"], ["b"])


def test_new_replica_uses_the_status() -> None:
    bad = {"model": "m", "slotsPerEngine": 0}
    good = {"model": "m", "slotsPerEngine": 3}
    for last in (good, json.dumps(good)):
        status = {"observedGeneration": 2, "lastAccepted": last}
        outcome = judged(PolicyEvaluator(), held("EnginePool", "chat", bad, generation=2, status=status))
        assert accepted(outcome).policies.pools["chat"].spec.slots_per_engine == 3
        assert json.loads(became(outcome, "chat").last_accepted) == good


def test_status_of_the_current_generation_overrides_replica_memory() -> None:
    bad = {"model": "m", "slotsPerEngine": 0}
    for observed, slots in ((2, 3), (1, 5)):
        judge = PolicyEvaluator()
        judged(judge, held("EnginePool", "chat", {"model": "m", "slotsPerEngine": 5}))
        status = {"observedGeneration": observed, "lastAccepted": {"model": "m", "slotsPerEngine": 3}}
        outcome = judged(judge, held("EnginePool", "chat", bad, generation=2, status=status))
        assert accepted(outcome).policies.pools["chat"].spec.slots_per_engine == slots


def test_recreated_object_has_no_history() -> None:
    judge = PolicyEvaluator()
    judged(judge, pool(), pool("other"))
    judged(judge, pool("other"))
    again = pool(spec={"slotsPerEngine": 0}, uid="another")
    assert not became(judged(judge, again, pool("other")), "chat").serving


def test_conflicting_edit_is_refused_and_removes_nothing() -> None:
    judge = PolicyEvaluator()
    waits = policy("p", "chat", spec={"limits": {"maxWait": "5s"}, "timeouts": {"nonStreaming": {"total": "60s"}}})
    judged(judge, pool(), waits)
    slower = pool(spec={"serviceTime": "50s", "longestServiceTime": "59s"}, generation=2)
    outcome = judged(judge, slower, waits)
    assert codes(outcome, "chat") == ["SG042"]
    assert became(outcome, "chat").serving
    assert became(outcome, "p").problems == ()
    # As a replica that starts later sees it, after the status was written.
    status = {"observedGeneration": 2, "lastAccepted": json.loads(pool().spec)}
    later = judged(PolicyEvaluator(), pool(spec=json.loads(slower.spec), generation=2, status=status), waits)
    assert accepted(later).texts == accepted(outcome).texts


def test_interdependent_edits_are_accepted_together() -> None:
    judge = PolicyEvaluator()
    judged(judge, pool("a"), pool("b"), policy("p", "a"), policy("q", "b"))
    outcome = judged(judge, pool("a"), pool("b"), policy("p", "b", generation=2), policy("q", "a", generation=2))
    assert all(not one.problems for one in outcome.objects)


def test_valid_edit_next_to_an_invalid_one_is_accepted() -> None:
    judge = PolicyEvaluator()
    judged(judge, pool(), route())
    outcome = judged(judge, pool(spec={"slotsPerEngine": 3}, generation=2), route(to="nowhere", generation=2))
    assert (codes(outcome, "chat"), codes(outcome, "front")) == ([], ["SG031"])
    assert accepted(outcome).policies.pools["chat"].spec.slots_per_engine == 3
    assert became(outcome, "front").serving


def test_route_returns_with_its_pool() -> None:
    judge = PolicyEvaluator()
    first = judged(judge, pool(), route())
    assert codes(judged(judge, pool("other"), route()), "front") == ["SG031"]
    assert accepted(judged(judge, pool(), route())).digest == accepted(first).digest


# -- secrets ---------------------------------------------------------------------------------------------------


class Folder:
    """The existing secrets."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)

    def error(self, name: str, at: Origin, path: str) -> PolicyError | None:
        if name in self.names:
            return None
        return unusable_secret(at, name, "it is not there", self.names, path=path)


def secured(secret: str, *, name: str = "chat", **more: Any) -> PolicyManifest:
    return pool(name, spec={"tls": {"secret": secret, "serverName": "engine"}}, **more)


def accepted_status(generation: int = 1) -> Json:
    condition = {"type": "Accepted", "status": "True", "observedGeneration": generation}
    return {"observedGeneration": generation, "conditions": [{"type": "Other"}, condition]}


def test_pool_with_missing_secret_waits_without_blocking_others() -> None:
    folder = Folder("engines")
    judge = PolicyEvaluator(folder.error)
    objects = (secured("missing", name="bad"), route("bad", "bad", 10001), secured("engines"), route())
    outcome = judged(judge, *objects)
    [error] = next(one for one in outcome.objects if (one.kind, one.name) == ("EnginePool", "bad")).problems
    assert (error.code, error.path, error.found) == ("SG043", "spec.tls.secret", "missing")
    assert error.origin.file == "ns/EnginePool/bad"
    assert list(accepted(outcome).policies.pools) == ["chat"]
    assert list(accepted(outcome).policies.routes) == ["front"]
    folder.names.add("missing")
    later = judged(judge, *objects)
    assert sorted(accepted(later).policies.pools) == ["bad", "chat"]
    assert accepted(later).digest != accepted(outcome).digest


def test_route_with_missing_listener_secret_waits() -> None:
    folder = Folder()
    judge = PolicyEvaluator(folder.error)
    spec = {"listener": {"port": 10000, "tls": {"secret": "front"}}, "pools": [{"pool": "chat"}]}
    objects = (pool(), held("ModelRoute", "front", spec))
    outcome = judged(judge, *objects)
    [error] = next(one for one in outcome.objects if one.kind == "ModelRoute").problems
    assert (error.code, error.path, error.found) == ("SG043", "spec.listener.tls.secret", "front")
    folder.names.add("front")
    assert list(accepted(judged(judge, *objects)).policies.routes) == ["front"]


def test_edit_to_a_missing_secret_keeps_the_previous_spec() -> None:
    judge = PolicyEvaluator(Folder("engines").error)
    judged(judge, secured("engines"), route())
    outcome = judged(judge, secured("missing", generation=2), route())
    assert (codes(outcome, "chat"), became(outcome, "chat").serving) == (["SG043"], True)
    tls = accepted(outcome).policies.pools["chat"].spec.tls
    assert tls is not None
    assert tls.secret == "engines"
    assert codes(outcome, "front") == []
    # Also if the leader has it, and this replica evaluates again.
    again = judged(judge, secured("missing", generation=2, status=accepted_status(2)), route())
    assert codes(again, "chat") == ["SG043"]


def test_served_pool_stays_when_its_secret_is_deleted() -> None:
    folder = Folder("engines")
    judge = PolicyEvaluator(folder.error)
    judged(judge, secured("engines"), route())
    folder.names.clear()
    assert codes(judged(judge, secured("engines"), route()), "chat") == []
    # A new replica uses the status, but only if it is about this spec.
    fresh = judged(PolicyEvaluator(folder.error), secured("engines", status=accepted_status()), route())
    assert list(accepted(fresh).policies.pools) == ["chat"]
    edited = judged(
        PolicyEvaluator(folder.error), secured("engines", generation=2, status=accepted_status()), pool("other")
    )
    assert codes(edited, "chat") == ["SG043"]


def test_only_missing_secrets_is_reported() -> None:
    outcome = judged(PolicyEvaluator(Folder().error), secured("missing"))
    assert isinstance(outcome.state, RejectedPolicies)
    assert [error.code for error in outcome.state.errors] == ["SG043"]


# -- names -----------------------------------------------------------------------------------------------------


def test_duplicate_name_serves_the_oldest_creation_timestamp() -> None:
    younger = pool(namespace="a", created="2026-01-02T00:00:00Z", spec={"slotsPerEngine": 2})
    older = pool(namespace="b", created="2026-01-01T00:00:00Z", spec={"slotsPerEngine": 3})
    outcome = judged(PolicyEvaluator(), younger, older)
    refused = next(one for one in outcome.objects if one.namespace == "a")
    assert [str(error) for error in refused.problems] == [
        "a/EnginePool/chat: SG030: metadata.name: an older EnginePool named chat exists in namespace b"
    ]
    assert accepted(outcome).policies.pools["chat"].spec.slots_per_engine == 3
    assert list(accepted(outcome).texts) == ["b/EnginePool/chat"]


def test_equal_age_duplicates_are_ordered_by_namespace() -> None:
    outcome = judged(PolicyEvaluator(), pool(namespace="b"), pool(namespace="a"))
    assert list(accepted(outcome).texts) == ["a/EnginePool/chat"]


def test_no_servable_object_is_refused_with_all_reasons() -> None:
    outcome = judged(PolicyEvaluator())
    assert isinstance(outcome.state, RejectedPolicies)
    assert [error.code for error in outcome.state.errors] == ["SG006"]
    outcome = judged(PolicyEvaluator(), pool(spec={"slotsPerEngine": 0}), route())
    assert isinstance(outcome.state, RejectedPolicies)
    assert [error.code for error in outcome.state.errors] == ["SG026", "SG031"]


# -- all replicas agree ----------------------------------------------------------------------------------------

_OBJECTS = [
    pool("a"),
    pool("b", spec={"slotsPerEngine": 4}),
    pool("b", namespace="other", created="2025-01-01T00:00:00Z"),
    pool("broken", spec={"slotsPerEngine": 0}),
    route("to-a", "a"),
    route("to-b", "b", 10001),
    route("same-as-to-b", "b", 10001, created="2026-02-01T00:00:00Z"),
    route("to-broken", "broken", 10002),
    route("to-nowhere", "nowhere", 10003),
    policy("default"),
    policy("p", "a"),
    policy("also-for-a", "a", created="2026-02-01T00:00:00Z"),
    policy("for-broken", "broken"),
]


def summary(outcome: PolicyEvaluation) -> tuple[Any, ...]:
    texts = dict(outcome.state.texts) if isinstance(outcome.state, AcceptedPolicies) else {}
    became = [
        (one.file, one.serving, one.last_accepted, [str(error) for error in one.problems])
        for one in outcome.objects
    ]
    return texts, outcome.state.digest, became


@settings(max_examples=40)
@given(
    chosen=st.sets(st.sampled_from(range(len(_OBJECTS))), min_size=1),
    rng=st.randoms(use_true_random=False),
    batches=st.lists(st.integers(1, 4), min_size=1, max_size=12),
)
def test_admission_is_independent_of_object_order(
    chosen: set[int], rng: random.Random, batches: list[int]
) -> None:
    objects = [_OBJECTS[number] for number in sorted(chosen)]
    expected = summary(judged(PolicyEvaluator(), *objects))
    rng.shuffle(objects)
    judge, rest, there = PolicyEvaluator(), list(objects), list[PolicyManifest]()
    for size in batches:
        there, rest = [*there, *rest[:size]], rest[size:]
        judged(judge, *there)
    assert summary(judged(judge, *there, *rest)) == expected


@settings(max_examples=40)
@given(chosen=st.sets(st.sampled_from(range(len(_OBJECTS))), min_size=1), rng=st.randoms(use_true_random=False))
def test_cluster_and_files_with_equal_texts_serve_the_same(chosen: set[int], rng: random.Random) -> None:
    objects = [_OBJECTS[number] for number in chosen]
    rng.shuffle(objects)
    outcome = judged(PolicyEvaluator(), *objects)
    if isinstance(outcome.state, AcceptedPolicies):
        restored = load_contents({Path(file): text.encode() for file, text in outcome.state.texts.items()})
        assert restored.digest == outcome.state.policies.digest
        assert restored.effective == outcome.state.policies.effective
    served = {one.file for one in outcome.objects if one.serving and not one.problems}
    assert served == (set(outcome.state.texts) if isinstance(outcome.state, AcceptedPolicies) else set())


def test_unchanged_documents_are_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    whole = load.validate_content

    def counted(content: bytes) -> load.ValidatedFile:
        parsed.append(content)
        return whole(content)

    monkeypatch.setattr(load, "validate_content", counted)
    judge = PolicyEvaluator()

    def offers(slots: int) -> dict[PolicyManifest, list[OfferedSpec]]:
        engines: Iterable[EndpointEntry] = [
            EndpointEntry({"name": "e", "address": "10.9.9.9", "port": 80, "slots": slots})
        ]
        return {
            pool(f"p{number}"): [OfferedSpec(spec=pool().spec, entries=tuple(engines) if number == 3 else ())]
            for number in range(10)
        }

    judge.evaluate(offers(1))
    assert len(parsed) == 10
    judge.evaluate(offers(2))
    assert len(parsed) == 11
    judge.evaluate(offers(2))
    assert len(parsed) == 11
