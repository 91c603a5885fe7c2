"""Who is blamed for a refusal, and what is served instead."""

import re

import pytest

from tests.xds_server.publish.resource_fixtures import cluster
from xds_server.model.snapshot import Snapshot, resource, snapshot
from xds_server.model.type_urls import CLUSTER, ENDPOINT, LISTENER, ROUTE, RUNTIME, SECRET
from xds_server.model.view import View
from xds_server.publish import NackPolicy, RollbackScope


def values(served: Snapshot, type_url: str = CLUSTER) -> dict[str, str]:
    return {name: item.value.decode() for name, item in served.of(type_url).items()}


def test_nacked_content_is_replaced_by_the_last_acked_until_it_changes() -> None:
    acceptance = NackPolicy()
    good, bad = cluster("c", "good"), cluster("c", "bad")
    acceptance.record_ack("v", [good])
    assert acceptance.attribute_nack([bad], "no").scope is RollbackScope.EVERYONE
    served = acceptance.effective("v", snapshot([bad]))
    assert values(served) == {"c": "good"}
    assert served.rolled_back_of(CLUSTER) == {"c"}
    newer = snapshot([cluster("c", "better")])
    assert acceptance.effective("v", newer) is newer


def test_nacked_content_without_acked_version_is_omitted_or_taken_from_another_view() -> None:
    acceptance = NackPolicy()
    bad = cluster("c", "bad")
    acceptance.attribute_nack([bad], "no")
    assert values(acceptance.effective("v", snapshot([bad, cluster("d", "1")]))) == {"d": "1"}
    acceptance.record_ack("other view", [cluster("c", "good")])
    assert values(acceptance.effective("v", snapshot([bad]))) == {"c": "good"}


@pytest.mark.parametrize("type_url", [ROUTE, LISTENER, RUNTIME])
def test_nack_fallback_content_respects_pool_authorization(type_url: str) -> None:
    acceptance = NackPolicy()
    gateway, bound = View(), View(allowed=frozenset({"a"}), pools=frozenset({"nothing"}))
    other = View(allowed=frozenset({"a"}), zone="z")
    whole, own, empty = (resource(type_url, "port-1", one) for one in (b"-> a, b", b"-> a", b""))
    acceptance.record_ack(gateway, [whole])
    acceptance.attribute_nack([empty], "no")
    assert not acceptance.effective(bound, snapshot([empty])).of(type_url)
    acceptance.record_ack(other, [own])
    assert values(acceptance.effective(bound, snapshot([empty])), type_url) == {"port-1": "-> a"}
    acceptance.attribute_nack([bad := resource(type_url, "port-1", b"bad")], "no")
    assert values(acceptance.effective(View(zone="y"), snapshot([bad])), type_url) == {"port-1": "-> a, b"}


def test_nack_fallback_secrets_respect_key_authorization() -> None:
    acceptance = NackPolicy()
    good, bad = (resource(SECRET, "s/certificate", one) for one in (b"a key", b"another key"))
    acceptance.record_ack(View(keys=True), [good])
    for node in ("a", "b", "c"):
        acceptance.attribute_nack([bad], "no", node=node)
    kept = [cluster("c", "good"), cluster("c", "bad")]
    acceptance.record_ack(View(keys=True), kept[:1])
    acceptance.attribute_nack(kept[1:], "no")
    assert values(acceptance.effective(View(keys=True, zone="z"), snapshot([bad])), SECRET) == {
        "s/certificate": "a key"
    }
    assert not acceptance.effective(View(), snapshot([bad])).of(SECRET)
    assert [park.type_url for park in acceptance.rejections()] == [CLUSTER]
    assert "a key" not in repr((good, acceptance.rejections()))


@pytest.mark.parametrize("type_url", [CLUSTER, ROUTE, LISTENER])
def test_rolled_back_content_keeps_its_sds_secrets(type_url: str) -> None:
    acceptance = NackPolicy()
    view, secret = View(keys=True), resource(SECRET, "before/certificate", b"a key")
    acceptance.record_ack(view, [secret, resource(type_url, "c", b"names it")])
    acceptance.attribute_nack([bad := resource(type_url, "c", b"names another")], "no")
    after = resource(SECRET, "after/certificate", b"another key")
    wanted = snapshot([bad, after])
    assert values(acceptance.effective(view, wanted), SECRET) == {
        "before/certificate": "a key",
        "after/certificate": "another key",
    }
    assert not acceptance.effective(View(), wanted).of(SECRET).keys() - {"after/certificate"}
    mended = snapshot([resource(type_url, "c", b"names another, well"), after])
    assert acceptance.effective(view, mended) is mended


def test_a_pools_cluster_is_lent_to_whoever_is_served_that_pool() -> None:
    acceptance = NackPolicy()
    acceptance.record_ack(View(), [cluster("a", "good")])
    acceptance.attribute_nack([bad := cluster("a", "bad")], "no")
    assert values(acceptance.effective(View(allowed=frozenset({"a"})), snapshot([bad]))) == {"a": "good"}


def test_nack_is_attributed_to_the_resource_envoy_names() -> None:
    acceptance = NackPolicy()
    verdict = acceptance.attribute_nack(
        [cluster("a", "1"), cluster("bad", "1"), cluster("invalid", "1")],
        "Error adding/updating cluster(s) bad: Invalid path: /nonexistent",
    )
    assert [item.name for item in verdict.at_fault] == ["bad"]
    assert {item.name for item in verdict.cleared} == {"a", "invalid"}
    assert list(acceptance.rejected_contents) == [(CLUSTER, "bad")]


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
    verdict = NackPolicy().attribute_nack(suspects, reason)
    assert (verdict.scope is RollbackScope.SUSPECT) is not bool(named)
    assert not named or {item.name for item in verdict.at_fault} == named


def test_what_is_suspected_leaves_no_expression_of_its_own_behind() -> None:
    re.purge()
    suspects = [cluster(f"c{number}", "1") for number in range(100)]
    NackPolicy().attribute_nack(suspects, "Error adding/updating cluster(s) c1: no")
    assert not re._cache  # type: ignore[attr-defined]  # asked for, as nothing public tells


def test_unattributed_nack_suspects_only_never_acked_content() -> None:
    acceptance = NackPolicy()
    fine, new = cluster("fine", "1"), cluster("new", "1")
    acceptance.record_ack("v", [fine])
    verdict = acceptance.attribute_nack([fine, new], "Proto constraint validation failed (...)")
    assert [item.name for item in verdict.at_fault] == ["new"]
    assert verdict.scope is RollbackScope.EVERYONE


def test_content_acked_by_another_proxy_is_not_rolled_back() -> None:
    acceptance = NackPolicy()
    listener = resource(LISTENER, "in", b"1")
    acceptance.record_ack("v", [listener])
    reason = "Error adding/updating listener(s) in: cannot bind '0.0.0.0:80': Address already in use"
    assert acceptance.attribute_nack([listener], reason).scope is RollbackScope.PEER
    assert acceptance.attribute_nack([listener], "no idea").scope is RollbackScope.PEER
    assert not acceptance.rejected_contents


def test_late_ack_clears_the_nack() -> None:
    acceptance = NackPolicy()
    item = cluster("c", "1")
    acceptance.attribute_nack([item], "no")
    assert acceptance.record_ack("v", [item])
    assert not acceptance.rejected_contents


def test_nack_suspects_are_bisected_one_at_a_time() -> None:
    acceptance = NackPolicy()
    suspects = [cluster("a", "1"), cluster("b", "1"), cluster("c", "1")]
    assert acceptance.attribute_nack(suspects, "constraint").scope is RollbackScope.SUSPECT
    desired = snapshot(suspects)
    assert values(acceptance.effective("v", desired)) == {"a": "1"}
    assert acceptance.record_ack("v", suspects[:1])
    assert values(acceptance.effective("v", desired)) == {"a": "1", "b": "1"}
    assert acceptance.attribute_nack(suspects[1:2], "constraint").scope is RollbackScope.EVERYONE
    assert values(acceptance.effective("v", desired)) == {"a": "1", "c": "1"}
    assert acceptance.record_ack("v", suspects[2:])
    assert list(acceptance.rejected_contents) == [(CLUSTER, "b")]


def test_nack_from_before_the_trial_is_not_attributed() -> None:
    acceptance = NackPolicy()
    suspects = [cluster("a", "1"), cluster("b", "1")]
    acceptance.attribute_nack(suspects, "constraint")
    acceptance.attribute_nack(suspects, "constraint", answers_trial=False)
    assert acceptance.trial(CLUSTER) is not None
    acceptance.record_ack("v", suspects[:1])
    assert values(acceptance.effective("v", snapshot(suspects))) == {"a": "1", "b": "1"}


def test_unacked_suspect_on_trial_is_rejected() -> None:
    acceptance = NackPolicy()
    suspects = [cluster("a", "1"), cluster("b", "1")]
    acceptance.attribute_nack(suspects, "constraint")
    assert acceptance.record_timeout(suspects[:1])
    assert values(acceptance.effective("v", snapshot(suspects))) == {"b": "1"}


def test_clusters_are_kept_while_a_referring_route_is_rolled_back() -> None:
    acceptance = NackPolicy()
    old = [cluster("old", "1"), resource(ENDPOINT, "old", b"1"), resource(ROUTE, "rc", b"->old")]
    acceptance.record_ack("v", snapshot(old).of(CLUSTER).values())
    acceptance.record_ack("v", snapshot(old).of(ENDPOINT).values())
    acceptance.record_ack("v", snapshot(old).of(ROUTE).values())
    new = [cluster("new", "1"), resource(ROUTE, "rc", b"->new and bad")]
    acceptance.attribute_nack(new[1:], "no")
    served = acceptance.effective("v", snapshot(new))
    assert values(served) == {"new": "1", "old": "1"}
    assert values(served, ROUTE) == {"rc": "->old"}
    assert set(served.of(ENDPOINT)) == {"old"}


def test_nacks_of_unwanted_content_are_forgotten() -> None:
    acceptance = NackPolicy()
    acceptance.attribute_nack([cluster("c", "bad")], "no")
    acceptance.prune([snapshot([cluster("c", "other")])], 0.0)
    assert not acceptance.rejected_contents


def test_unwanted_acked_content_expires() -> None:
    acceptance = NackPolicy()
    acceptance.record_ack("v", [cluster("c", "good")])
    for now_s in (0.0, 500.0):
        acceptance.prune([Snapshot()], now_s)
    bad = cluster("c", "bad")
    acceptance.attribute_nack([bad], "no")
    assert values(acceptance.effective("v", snapshot([bad]))) == {"c": "good"}
    acceptance.prune([Snapshot()], 1_000.0)
    acceptance.attribute_nack([bad], "no")
    assert values(acceptance.effective("v", snapshot([bad]))) == {}


def test_a_rolled_back_cluster_changes_the_version_of_its_endpoints_back_too() -> None:
    acceptance = NackPolicy()
    endpoints = resource(ENDPOINT, "c", b"same")
    before = snapshot([cluster("c", "good"), endpoints])
    acceptance.record_ack("v", before.of(CLUSTER).values())
    after = snapshot([cluster("c", "bad"), endpoints])
    assert after.of(ENDPOINT)["c"].version != before.of(ENDPOINT)["c"].version
    acceptance.attribute_nack([after.of(CLUSTER)["c"]], "no")
    assert acceptance.effective("v", after).of(ENDPOINT)["c"].version == before.of(ENDPOINT)["c"].version
