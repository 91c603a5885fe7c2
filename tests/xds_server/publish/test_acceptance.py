"""Who is blamed for a refusal, and what is served instead."""

import re

import pytest

from tests.xds_server.publish.contents import cluster
from xds_server.publish import Acceptance, Scope
from xds_server.snapshot import Snapshot, resource, snapshot
from xds_server.translate.view import View
from xds_server.type_urls import CLUSTER, ENDPOINT, LISTENER, ROUTE, RUNTIME, SECRET


def values(served: Snapshot, type_url: str = CLUSTER) -> dict[str, str]:
    return {name: item.value.decode() for name, item in served.of(type_url).items()}


def test_refused_content_is_replaced_by_the_last_accepted_until_it_changes() -> None:
    acceptance = Acceptance()
    good, bad = cluster("c", "good"), cluster("c", "bad")
    acceptance.accepted("v", [good])
    assert acceptance.refused([bad], "no").scope is Scope.EVERYONE
    served = acceptance.effective("v", snapshot([bad]))
    assert values(served) == {"c": "good"}
    assert served.rolled_back_of(CLUSTER) == {"c"}
    newer = snapshot([cluster("c", "better")])
    assert acceptance.effective("v", newer) is newer


def test_what_was_never_accepted_is_left_out_and_other_views_lend_theirs() -> None:
    acceptance = Acceptance()
    bad = cluster("c", "bad")
    acceptance.refused([bad], "no")
    assert values(acceptance.effective("v", snapshot([bad, cluster("d", "1")]))) == {"d": "1"}
    acceptance.accepted("other view", [cluster("c", "good")])
    assert values(acceptance.effective("v", snapshot([bad]))) == {"c": "good"}


@pytest.mark.parametrize("type_url", [ROUTE, LISTENER, RUNTIME])
def test_nobody_is_lent_what_names_pools_that_it_may_not_see(type_url: str) -> None:
    acceptance = Acceptance()
    gateway, bound = View(), View(allowed=frozenset({"a"}), pools=frozenset({"nothing"}))
    other = View(allowed=frozenset({"a"}), zone="z")
    whole, own, empty = (resource(type_url, "port-1", one) for one in (b"-> a, b", b"-> a", b""))
    acceptance.accepted(gateway, [whole])
    acceptance.refused([empty], "no")
    assert not acceptance.effective(bound, snapshot([empty])).of(type_url)
    acceptance.accepted(other, [own])
    assert values(acceptance.effective(bound, snapshot([empty])), type_url) == {"port-1": "-> a"}
    acceptance.refused([bad := resource(type_url, "port-1", b"bad")], "no")
    assert values(acceptance.effective(View(zone="y"), snapshot([bad])), type_url) == {"port-1": "-> a, b"}


def test_secrets_are_not_written_down_and_lent_only_where_keys_may_go() -> None:
    acceptance = Acceptance()
    good, bad = (resource(SECRET, "s/certificate", one) for one in (b"a key", b"another key"))
    acceptance.accepted(View(keys=True), [good])
    for node in ("a", "b", "c"):
        acceptance.refused([bad], "no", node=node)
    kept = [cluster("c", "good"), cluster("c", "bad")]
    acceptance.accepted(View(keys=True), kept[:1])
    acceptance.refused(kept[1:], "no")
    assert values(acceptance.effective(View(keys=True, zone="z"), snapshot([bad])), SECRET) == {
        "s/certificate": "a key"
    }
    assert not acceptance.effective(View(), snapshot([bad])).of(SECRET)
    assert [park.type_url for park in acceptance.memory()] == [CLUSTER]
    assert "a key" not in repr((good, acceptance.memory()))


@pytest.mark.parametrize("type_url", [CLUSTER, ROUTE, LISTENER])
def test_what_is_rolled_back_finds_the_secrets_that_it_names(type_url: str) -> None:
    acceptance = Acceptance()
    view, secret = View(keys=True), resource(SECRET, "before/certificate", b"a key")
    acceptance.accepted(view, [secret, resource(type_url, "c", b"names it")])
    acceptance.refused([bad := resource(type_url, "c", b"names another")], "no")
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
    acceptance = Acceptance()
    acceptance.accepted(View(), [cluster("a", "good")])
    acceptance.refused([bad := cluster("a", "bad")], "no")
    assert values(acceptance.effective(View(allowed=frozenset({"a"})), snapshot([bad]))) == {"a": "good"}


def test_the_resource_that_envoy_names_is_to_blame() -> None:
    acceptance = Acceptance()
    verdict = acceptance.refused(
        [cluster("a", "1"), cluster("bad", "1"), cluster("invalid", "1")],
        "Error adding/updating cluster(s) bad: Invalid path: /nonexistent",
    )
    assert [item.name for item in verdict.at_fault] == ["bad"]
    assert {item.name for item in verdict.cleared} == {"a", "invalid"}
    assert list(acceptance.parked) == [(CLUSTER, "bad")]


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
def test_a_name_counts_only_where_envoy_puts_what_it_refuses(reason: str, named: set[str]) -> None:
    suspects = [cluster(name, "1") for name in ("a", "aa", "b", "c", "a.*")]
    verdict = Acceptance().refused(suspects, reason)
    assert (verdict.scope is Scope.SUSPECT) is not bool(named)
    assert not named or {item.name for item in verdict.at_fault} == named


def test_what_is_suspected_leaves_no_expression_of_its_own_behind() -> None:
    re.purge()
    suspects = [cluster(f"c{number}", "1") for number in range(100)]
    Acceptance().refused(suspects, "Error adding/updating cluster(s) c1: no")
    assert not re._cache  # type: ignore[attr-defined]  # asked for, as nothing public tells


def test_without_a_name_only_what_nobody_accepted_is_suspect() -> None:
    acceptance = Acceptance()
    fine, new = cluster("fine", "1"), cluster("new", "1")
    acceptance.accepted("v", [fine])
    verdict = acceptance.refused([fine, new], "Proto constraint validation failed (...)")
    assert [item.name for item in verdict.at_fault] == ["new"]
    assert verdict.scope is Scope.EVERYONE


def test_what_another_proxy_accepted_is_rolled_back_for_nobody() -> None:
    acceptance = Acceptance()
    listener = resource(LISTENER, "in", b"1")
    acceptance.accepted("v", [listener])
    reason = "Error adding/updating listener(s) in: cannot bind '0.0.0.0:80': Address already in use"
    assert acceptance.refused([listener], reason).scope is Scope.PEER
    assert acceptance.refused([listener], "no idea").scope is Scope.PEER
    assert not acceptance.parked


def test_an_acceptance_that_comes_late_ends_the_park() -> None:
    acceptance = Acceptance()
    item = cluster("c", "1")
    acceptance.refused([item], "no")
    assert acceptance.accepted("v", [item])
    assert not acceptance.parked


def test_several_suspects_are_tried_one_at_a_time() -> None:
    acceptance = Acceptance()
    suspects = [cluster("a", "1"), cluster("b", "1"), cluster("c", "1")]
    assert acceptance.refused(suspects, "constraint").scope is Scope.SUSPECT
    desired = snapshot(suspects)
    assert values(acceptance.effective("v", desired)) == {"a": "1"}
    assert acceptance.accepted("v", suspects[:1])
    assert values(acceptance.effective("v", desired)) == {"a": "1", "b": "1"}
    assert acceptance.refused(suspects[1:2], "constraint").scope is Scope.EVERYONE
    assert values(acceptance.effective("v", desired)) == {"a": "1", "c": "1"}
    assert acceptance.accepted("v", suspects[2:])
    assert list(acceptance.parked) == [(CLUSTER, "b")]


def test_a_refusal_from_before_the_trial_convicts_nobody() -> None:
    acceptance = Acceptance()
    suspects = [cluster("a", "1"), cluster("b", "1")]
    acceptance.refused(suspects, "constraint")
    acceptance.refused(suspects, "constraint", answers_trial=False)
    assert acceptance.trial(CLUSTER) is not None
    acceptance.accepted("v", suspects[:1])
    assert values(acceptance.effective("v", snapshot(suspects))) == {"a": "1", "b": "1"}


def test_silence_convicts_the_one_on_trial() -> None:
    acceptance = Acceptance()
    suspects = [cluster("a", "1"), cluster("b", "1")]
    acceptance.refused(suspects, "constraint")
    assert acceptance.unanswered(suspects[:1])
    assert values(acceptance.effective("v", snapshot(suspects))) == {"b": "1"}


def test_clusters_stay_while_a_route_that_may_name_them_is_rolled_back() -> None:
    acceptance = Acceptance()
    old = [cluster("old", "1"), resource(ENDPOINT, "old", b"1"), resource(ROUTE, "rc", b"->old")]
    acceptance.accepted("v", snapshot(old).of(CLUSTER).values())
    acceptance.accepted("v", snapshot(old).of(ENDPOINT).values())
    acceptance.accepted("v", snapshot(old).of(ROUTE).values())
    new = [cluster("new", "1"), resource(ROUTE, "rc", b"->new and bad")]
    acceptance.refused(new[1:], "no")
    served = acceptance.effective("v", snapshot(new))
    assert values(served) == {"new": "1", "old": "1"}
    assert values(served, ROUTE) == {"rc": "->old"}
    assert set(served.of(ENDPOINT)) == {"old"}


def test_parks_of_content_that_nobody_wants_are_forgotten() -> None:
    acceptance = Acceptance()
    acceptance.refused([cluster("c", "bad")], "no")
    acceptance.wanted([snapshot([cluster("c", "other")])], 0.0)
    assert not acceptance.parked


def test_accepted_content_that_nobody_wants_is_forgotten_after_a_while() -> None:
    acceptance = Acceptance()
    acceptance.accepted("v", [cluster("c", "good")])
    for now_s in (0.0, 500.0):
        acceptance.wanted([Snapshot()], now_s)
    bad = cluster("c", "bad")
    acceptance.refused([bad], "no")
    assert values(acceptance.effective("v", snapshot([bad]))) == {"c": "good"}
    acceptance.wanted([Snapshot()], 1_000.0)
    acceptance.refused([bad], "no")
    assert values(acceptance.effective("v", snapshot([bad]))) == {}


def test_a_rolled_back_cluster_changes_the_version_of_its_endpoints_back_too() -> None:
    acceptance = Acceptance()
    endpoints = resource(ENDPOINT, "c", b"same")
    before = snapshot([cluster("c", "good"), endpoints])
    acceptance.accepted("v", before.of(CLUSTER).values())
    after = snapshot([cluster("c", "bad"), endpoints])
    assert after.of(ENDPOINT)["c"].version != before.of(ENDPOINT)["c"].version
    acceptance.refused([after.of(CLUSTER)["c"]], "no")
    assert acceptance.effective("v", after).of(ENDPOINT)["c"].version == before.of(ENDPOINT)["c"].version
