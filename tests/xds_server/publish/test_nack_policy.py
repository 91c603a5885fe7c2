"""Attribution of NACKs, and the content served instead."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.xds_server.publish.resource_fixtures import cluster, nack
from xds_server.model.snapshot import Resource, Snapshot, content_of, resource, snapshot
from xds_server.model.type_urls import CLUSTER, ENDPOINT, LISTENER, ROUTE, RUNTIME, SECRET
from xds_server.model.view import View
from xds_server.publish import NackPolicy, NackReport, RollbackScope


def values(served: Snapshot, type_url: str = CLUSTER) -> dict[str, str]:
    return {name: item.value.decode() for name, item in served.of(type_url).items()}


def test_nacked_content_is_replaced_by_the_last_acked_until_it_changes() -> None:
    policy = NackPolicy()
    good, bad = cluster("c", "good"), cluster("c", "bad")
    policy.record_ack("v", [good])
    assert nack(policy, [bad], "no").scope is RollbackScope.EVERYONE
    served = policy.effective("v", snapshot([bad]))
    assert values(served) == {"c": "good"}
    assert served.rolled_back_of(CLUSTER) == {"c"}
    newer = snapshot([cluster("c", "better")])
    assert policy.effective("v", newer) is newer


def test_nacked_content_without_acked_version_is_omitted_or_taken_from_another_view() -> None:
    policy = NackPolicy()
    bad = cluster("c", "bad")
    nack(policy, [bad], "no")
    assert values(policy.effective("v", snapshot([bad, cluster("d", "1")]))) == {"d": "1"}
    policy.record_ack("other view", [cluster("c", "good")])
    assert values(policy.effective("v", snapshot([bad]))) == {"c": "good"}


@pytest.mark.parametrize("type_url", [ROUTE, LISTENER, RUNTIME])
def test_nack_fallback_content_respects_pool_authorization(type_url: str) -> None:
    policy = NackPolicy()
    gateway, bound = View(), View(allowed=frozenset({"a"}), pools=frozenset({"nothing"}))
    other = View(allowed=frozenset({"a"}), zone="z")
    whole, own, empty = (resource(type_url, "port-1", one) for one in (b"-> a, b", b"-> a", b""))
    policy.record_ack(gateway, [whole])
    nack(policy, [empty], "no")
    assert not policy.effective(bound, snapshot([empty])).of(type_url)
    policy.record_ack(other, [own])
    assert values(policy.effective(bound, snapshot([empty])), type_url) == {"port-1": "-> a"}
    nack(policy, [bad := resource(type_url, "port-1", b"bad")], "no")
    assert values(policy.effective(View(zone="y"), snapshot([bad])), type_url) == {"port-1": "-> a, b"}


def test_nack_fallback_secrets_respect_key_authorization() -> None:
    policy = NackPolicy()
    good, bad = (resource(SECRET, "s/certificate", one) for one in (b"a key", b"another key"))
    policy.record_ack(View(keys=True), [good])
    for node in ("a", "b", "c"):
        nack(policy, [bad], "no", node=node)
    kept = [cluster("c", "good"), cluster("c", "bad")]
    policy.record_ack(View(keys=True), kept[:1])
    nack(policy, kept[1:], "no")
    assert values(policy.effective(View(keys=True, zone="z"), snapshot([bad])), SECRET) == {
        "s/certificate": "a key"
    }
    assert not policy.effective(View(), snapshot([bad])).of(SECRET)
    assert [known.type_url for known in policy.rejections()] == [CLUSTER]
    assert "a key" not in repr((good, policy.rejections()))


@pytest.mark.parametrize("type_url", [CLUSTER, ROUTE, LISTENER])
def test_rolled_back_content_keeps_its_sds_secrets(type_url: str) -> None:
    policy = NackPolicy()
    view, secret = View(keys=True), resource(SECRET, "before/certificate", b"a key")
    policy.record_ack(view, [secret, resource(type_url, "c", b"names it")])
    nack(policy, [bad := resource(type_url, "c", b"names another")], "no")
    after = resource(SECRET, "after/certificate", b"another key")
    wanted = snapshot([bad, after])
    assert values(policy.effective(view, wanted), SECRET) == {
        "before/certificate": "a key",
        "after/certificate": "another key",
    }
    assert not policy.effective(View(), wanted).of(SECRET).keys() - {"after/certificate"}
    mended = snapshot([resource(type_url, "c", b"names another, well"), after])
    assert policy.effective(view, mended) is mended


def test_cluster_fallback_is_shared_between_views_of_its_pool() -> None:
    policy = NackPolicy()
    policy.record_ack(View(), [cluster("a", "good")])
    nack(policy, [bad := cluster("a", "bad")], "no")
    assert values(policy.effective(View(allowed=frozenset({"a"})), snapshot([bad]))) == {"a": "good"}


def test_nack_is_attributed_to_the_resource_envoy_names() -> None:
    policy = NackPolicy()
    decision = nack(
        policy,
        [cluster("a", "1"), cluster("bad", "1"), cluster("invalid", "1")],
        "Error adding/updating cluster(s) bad: Invalid path: /nonexistent",
    )
    assert [item.name for item in decision.at_fault] == ["bad"]
    assert set(decision.resend) == {"a", "invalid"}
    assert list(policy.rejected_contents) == [(CLUSTER, "bad")]


@pytest.mark.parametrize(
    ("reason", "named"),
    [
        ("Error adding/updating cluster(s) a: no, b:\n x: no; c: no", {"a", "b", "c"}),
        ("Error adding/updating cluster(s) aa: no, b-a: no, x:a:no", {"aa"}),
        ("a: no", set()),
        ('field: value too long, in name:  "a" and xname:"aa"', {"a", "aa"}),
        ('other: "a"', set()),
        ("Error adding/updating cluster(s) a.*: no", {"a.*"}),
        ("a: was fine, but\n\t a: not then", {"a"}),
    ],
)
def test_nack_attribution_reads_names_only_at_envoys_positions(reason: str, named: set[str]) -> None:
    suspects = [cluster(name, "1") for name in ("a", "aa", "b", "c", "a.*")]
    decision = nack(NackPolicy(), suspects, reason)
    assert (decision.scope is RollbackScope.SUSPECT) is not bool(named)
    assert not named or {item.name for item in decision.at_fault} == named


def test_nack_attribution_compiles_no_regex_per_name() -> None:
    re.purge()
    suspects = [cluster(f"c{number}", "1") for number in range(100)]
    nack(NackPolicy(), suspects, "Error adding/updating cluster(s) c1: no")
    assert not re._cache  # type: ignore[attr-defined]  # asked for, as nothing public tells


def test_unattributed_nack_suspects_only_never_acked_content() -> None:
    policy = NackPolicy()
    fine, new = cluster("fine", "1"), cluster("new", "1")
    policy.record_ack("v", [fine])
    decision = nack(policy, [fine, new], "Proto constraint validation failed (...)")
    assert [item.name for item in decision.at_fault] == ["new"]
    assert decision.scope is RollbackScope.EVERYONE


def test_content_acked_by_another_proxy_is_not_rolled_back() -> None:
    policy = NackPolicy()
    listener = resource(LISTENER, "in", b"1")
    policy.record_ack("v", [listener])
    reason = "Error adding/updating listener(s) in: cannot bind '0.0.0.0:80': Address already in use"
    assert nack(policy, [listener], reason).scope is RollbackScope.PEER
    assert nack(policy, [listener], "no idea").scope is RollbackScope.PEER
    assert not policy.rejected_contents


def test_late_ack_clears_the_nack() -> None:
    policy = NackPolicy()
    item = cluster("c", "1")
    nack(policy, [item], "no")
    assert policy.record_ack("v", [item])
    assert not policy.rejected_contents


def test_nack_suspects_are_bisected_one_at_a_time() -> None:
    policy = NackPolicy()
    suspects = [cluster("a", "1"), cluster("b", "1"), cluster("c", "1")]
    assert nack(policy, suspects, "constraint").scope is RollbackScope.SUSPECT
    desired = snapshot(suspects)
    assert values(policy.effective("v", desired)) == {"a": "1"}
    assert policy.record_ack("v", suspects[:1])
    assert values(policy.effective("v", desired)) == {"a": "1", "b": "1"}
    assert nack(policy, suspects[1:2], "constraint").scope is RollbackScope.EVERYONE
    assert values(policy.effective("v", desired)) == {"a": "1", "c": "1"}
    assert policy.record_ack("v", suspects[2:])
    assert list(policy.rejected_contents) == [(CLUSTER, "b")]


def test_nack_from_before_the_trial_is_not_attributed() -> None:
    policy = NackPolicy()
    suspects = [cluster("a", "1"), cluster("b", "1")]
    nack(policy, suspects, "constraint")
    nack(policy, suspects, "constraint", answers_trial=False)
    assert policy.trial(CLUSTER) is not None
    policy.record_ack("v", suspects[:1])
    assert values(policy.effective("v", snapshot(suspects))) == {"a": "1", "b": "1"}


def test_unacked_suspect_on_trial_is_rejected() -> None:
    policy = NackPolicy()
    suspects = [cluster("a", "1"), cluster("b", "1")]
    nack(policy, suspects, "constraint")
    assert policy.record_timeout(suspects[:1])
    assert values(policy.effective("v", snapshot(suspects))) == {"b": "1"}


def test_clusters_are_kept_while_a_referring_route_is_rolled_back() -> None:
    policy = NackPolicy()
    old = [cluster("old", "1"), resource(ENDPOINT, "old", b"1"), resource(ROUTE, "rc", b"->old")]
    policy.record_ack("v", snapshot(old).of(CLUSTER).values())
    policy.record_ack("v", snapshot(old).of(ENDPOINT).values())
    policy.record_ack("v", snapshot(old).of(ROUTE).values())
    new = [cluster("new", "1"), resource(ROUTE, "rc", b"->new and bad")]
    nack(policy, new[1:], "no")
    served = policy.effective("v", snapshot(new))
    assert values(served) == {"new": "1", "old": "1"}
    assert values(served, ROUTE) == {"rc": "->old"}
    assert set(served.of(ENDPOINT)) == {"old"}


def test_nacks_of_unwanted_content_are_forgotten() -> None:
    policy = NackPolicy()
    nack(policy, [cluster("c", "bad")], "no")
    policy.prune([snapshot([cluster("c", "other")])], 0.0)
    assert not policy.rejected_contents


def test_unwanted_acked_content_expires() -> None:
    policy = NackPolicy()
    policy.record_ack("v", [cluster("c", "good")])
    for now_s in (0.0, 500.0):
        policy.prune([Snapshot()], now_s)
    bad = cluster("c", "bad")
    nack(policy, [bad], "no")
    assert values(policy.effective("v", snapshot([bad]))) == {"c": "good"}
    policy.prune([Snapshot()], 1_000.0)
    nack(policy, [bad], "no")
    assert values(policy.effective("v", snapshot([bad]))) == {}


def test_rolled_back_cluster_restores_its_endpoints_version() -> None:
    policy = NackPolicy()
    endpoints = resource(ENDPOINT, "c", b"same")
    before = snapshot([cluster("c", "good"), endpoints])
    policy.record_ack("v", before.of(CLUSTER).values())
    after = snapshot([cluster("c", "bad"), endpoints])
    assert after.of(ENDPOINT)["c"].version != before.of(ENDPOINT)["c"].version
    nack(policy, [after.of(CLUSTER)["c"]], "no")
    assert policy.effective("v", after).of(ENDPOINT)["c"].version == before.of(ENDPOINT)["c"].version


_names = st.sampled_from("abcd")
_contents = st.sampled_from(("1", "2"))
_clusters = st.dictionaries(_names, _contents, min_size=1).map(
    lambda named: [cluster(name, content) for name, content in named.items()]
)
_reasons = st.sampled_from(("constraint", "Error adding/updating cluster(s) a: no", 'name: "b"'))
_events = st.lists(
    st.one_of(
        st.tuples(st.just("ack"), _clusters, _reasons, st.booleans()),
        st.tuples(st.just("nack"), _clusters, _reasons, st.booleans()),
        st.tuples(st.just("timeout"), _clusters, _reasons, st.booleans()),
    ),
    max_size=12,
)


@given(events=_events, suspects=_clusters, reason=_reasons, answers_trial=st.booleans())
def test_nack_decision_changes_no_state(
    events: list[tuple[str, list[Resource], str, bool]], suspects: list[Resource], reason: str, answers_trial: bool
) -> None:
    policy = NackPolicy()
    for kind, items, why, in_trial in events:
        if kind == "ack":
            policy.record_ack("v", items)
        elif kind == "timeout":
            policy.record_timeout(items)
        else:
            nack(policy, items, why, answers_trial=in_trial)
    report = NackReport(type_url=CLUSTER, suspects=tuple(suspects), reason=reason, answers_trial=answers_trial)
    wanted = snapshot(suspects)

    decision = policy.decide(report)

    assert policy.decide(report) == decision, "a decision changes nothing"
    policy.apply(decision)
    served, trial = policy.effective("v", wanted), policy.trial(CLUSTER)
    at_fault = {item.name for item in decision.at_fault}
    resent = set(decision.resend)
    assert at_fault, "some suspect is at fault"
    assert at_fault | resent == {item.name for item in suspects}
    on_trial = {item.name for item in suspects if (item.name, content_of(item.version)) == trial}
    assert at_fault & resent == (at_fault & on_trial if decision.scope is RollbackScope.SUSPECT else set())
    if decision.scope is not RollbackScope.PEER:
        assert at_fault - on_trial <= set(served.rolled_back_of(CLUSTER))
