"""Attribution of NACKs, the quorum, and the content served instead."""

import re

import pytest

from tests.xds_server.publish.resource_fixtures import cluster, contents, refuse
from xds_server.model.snapshot import Resource, Snapshot, resource, snapshot
from xds_server.model.type_urls import CLUSTER, ENDPOINT, LISTENER, ROUTE, RUNTIME, SECRET
from xds_server.model.view import View
from xds_server.publish import NackDecision, NackPolicy, NackReport
from xds_server.publish.acked_content import MAX_FORMER
from xds_server.publish.content_rejections import MAX_REJECTED, NACK_QUORUM
from xds_server.publish.nack_decision import decide_nack
from xds_server.publish.suspect_trials import SuspectTrials


def values(served: Snapshot, type_url: str = CLUSTER) -> dict[str, str]:
    return {name: item.value.decode() for name, item in served.of(type_url).items()}


def decide(suspects: list[Resource], reason: str) -> NackDecision:
    return decide_nack(NackReport(type_url=CLUSTER, suspects=tuple(suspects), reason=reason))


def held(policy: NackPolicy, item: Resource, agent: str = "") -> None:
    for number in range(NACK_QUORUM):
        refuse(policy, [item], host=f"10.0.0.{number}", agent=agent)


def test_nacked_content_is_replaced_by_the_last_acked_until_it_changes() -> None:
    policy = NackPolicy()
    good, bad = cluster("c", "good"), cluster("c", "bad")
    policy.record_ack("v", [good])
    served = policy.effective("v", snapshot([bad]), contents(bad))
    assert values(served) == {"c": "good"}
    assert served.rolled_back_of(CLUSTER) == {"c"}
    newer = snapshot([cluster("c", "better")])
    assert policy.effective("v", newer, contents(bad)) is newer


def test_nack_affects_no_other_proxy() -> None:
    policy = NackPolicy()
    wanted = snapshot([bad := cluster("c", "bad")])
    policy.record_ack("v", [cluster("c", "good")])
    for host in ("a", "a", "b"):
        refuse(policy, [bad], host=host)
        assert policy.effective("v", wanted) is wanted


def test_content_nacked_by_a_quorum_of_hosts_is_held_back_from_their_version_only() -> None:
    policy = NackPolicy()
    wanted = snapshot([bad := cluster("c", "bad")])
    policy.record_ack("v", [cluster("c", "good")])
    changes = [refuse(policy, [bad], host=host, agent="envoy 1.36.0") for host in ("a", "a", "b", "c", "d")]
    assert changes == [False, False, False, True, False]
    assert values(policy.effective("v", wanted, agent="envoy 1.36.0")) == {"c": "good"}
    assert policy.effective("v", wanted, agent="envoy 1.40.0") is wanted
    assert policy.record_ack("v", [bad])
    assert policy.effective("v", wanted, agent="envoy 1.36.0") is wanted
    held(policy, bad, "envoy 1.36.0")
    assert policy.effective("v", wanted, agent="envoy 1.36.0") is wanted, "a proxy accepted it"


def test_content_without_acked_replacement_is_held_back_from_no_proxy() -> None:
    policy = NackPolicy()
    wanted = snapshot([bad := cluster("c", "bad"), cluster("d", "1")])
    held(policy, bad)
    assert policy.effective("v", wanted) is wanted
    assert values(policy.effective("v", wanted, contents(bad))) == {"d": "1"}, "but it refused it itself"
    policy.record_ack("other view", [cluster("c", "good")])
    assert values(policy.effective("v", wanted)) == {"c": "good", "d": "1"}


def test_accepting_anything_does_not_displace_the_last_good_content() -> None:
    policy = NackPolicy()
    items = [cluster("c", str(number)) for number in range(MAX_FORMER + 1)]
    for item in items:
        policy.record_ack("v", [item])
    for refused in range(1, len(items)):
        served = policy.effective("v", snapshot(items[-1:]), contents(*items[-refused:]))
        assert values(served) == {"c": str(MAX_FORMER - refused)}
    assert values(policy.effective("v", snapshot(items[-1:]), contents(*items))) == {}


@pytest.mark.parametrize("type_url", [ROUTE, LISTENER, RUNTIME])
def test_nack_fallback_content_respects_pool_authorization(type_url: str) -> None:
    policy = NackPolicy()
    gateway, bound = View(), View(allowed=frozenset({"a"}), pools=frozenset({"nothing"}))
    other = View(allowed=frozenset({"a"}), zone="z")
    whole, own, empty = (resource(type_url, "port-1", one) for one in (b"-> a, b", b"-> a", b""))
    policy.record_ack(gateway, [whole])
    assert not policy.effective(bound, snapshot([empty]), contents(empty)).of(type_url)
    policy.record_ack(other, [own])
    assert values(policy.effective(bound, snapshot([empty]), contents(empty)), type_url) == {"port-1": "-> a"}
    bad = resource(type_url, "port-1", b"bad")
    served = policy.effective(View(zone="y"), snapshot([bad]), contents(bad))
    assert values(served, type_url) == {"port-1": "-> a, b"}


def test_nack_fallback_secrets_respect_key_authorization() -> None:
    policy = NackPolicy()
    good, bad = (resource(SECRET, "s/certificate", one) for one in (b"a key", b"another key"))
    policy.record_ack(View(keys=True), [good])
    kept = [cluster("c", "good"), cluster("c", "bad")]
    policy.record_ack(View(keys=True), kept[:1])
    for host in "abc":
        refuse(policy, [bad, kept[1]], host=host)
    assert values(policy.effective(View(keys=True, zone="z"), snapshot([bad])), SECRET) == {
        "s/certificate": "a key"
    }
    assert not policy.effective(View(), snapshot([bad]), contents(bad)).of(SECRET)
    assert [known.type_url for known in policy.rejections()] == [CLUSTER]
    assert "a key" not in repr((good, policy.rejections()))


@pytest.mark.parametrize("type_url", [CLUSTER, ROUTE, LISTENER])
def test_rolled_back_content_keeps_its_sds_secrets(type_url: str) -> None:
    policy = NackPolicy()
    view, secret = View(keys=True), resource(SECRET, "before/certificate", b"a key")
    policy.record_ack(view, [secret, resource(type_url, "c", b"names it")])
    bad = resource(type_url, "c", b"names another")
    after = resource(SECRET, "after/certificate", b"another key")
    wanted = snapshot([bad, after])
    assert values(policy.effective(view, wanted, contents(bad)), SECRET) == {
        "before/certificate": "a key",
        "after/certificate": "another key",
    }
    assert not policy.effective(View(), wanted, contents(bad)).of(SECRET).keys() - {"after/certificate"}
    mended = snapshot([resource(type_url, "c", b"names another, well"), after])
    assert policy.effective(view, mended, contents(bad)) is mended


def test_cluster_fallback_is_shared_between_views_of_its_pool() -> None:
    policy = NackPolicy()
    policy.record_ack(View(), [cluster("a", "good")])
    bad = cluster("a", "bad")
    served = policy.effective(View(allowed=frozenset({"a"})), snapshot([bad]), contents(bad))
    assert values(served) == {"a": "good"}


def test_nack_is_attributed_to_the_resource_envoy_names() -> None:
    decision = decide(
        [cluster("a", "1"), cluster("bad", "1"), cluster("invalid", "1")],
        "Error adding/updating cluster(s) bad: Invalid path: /nonexistent",
    )
    assert [item.name for item in decision.at_fault] == ["bad"]
    assert {item.name for item in decision.resend} == {"a", "invalid"}


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
    decision = decide(suspects, reason)
    assert {item.name for item in decision.at_fault} == named
    assert len(decision.tried) == (0 if named else len(suspects))


def test_nack_attribution_compiles_no_regex_per_name() -> None:
    re.purge()
    suspects = [cluster(f"c{number}", "1") for number in range(100)]
    decide(suspects, "Error adding/updating cluster(s) c1: no")
    assert not re._cache  # type: ignore[attr-defined]  # asked for, as nothing public tells


def test_nack_of_a_single_suspect_is_attributed_to_it() -> None:
    assert decide([cluster("new", "1")], "constraint").at_fault == (cluster("new", "1"),)


def test_nack_suspects_are_tried_by_halves() -> None:
    trials: SuspectTrials[str] = SuspectTrials()
    sent = []
    trials.add("abcdefgh")
    while group := trials.advance(lambda _: True):
        sent.append("".join(group))
        if "f" not in group or len(group) == 1:
            trials.remove(group)
        else:
            trials.add(group)
    assert sent == ["abcd", "efgh", "ef", "e", "f", "gh"]
    assert not trials


def test_suspects_that_others_accepted_are_tried_first_and_together() -> None:
    trials: SuspectTrials[str] = SuspectTrials()
    trials.add("abcd", "acd")
    assert trials.advance(lambda _: True) == ("a", "c", "d")
    assert trials.all == set("abcd")


def test_suspects_no_longer_desired_are_not_tried() -> None:
    trials: SuspectTrials[str] = SuspectTrials()
    trials.add("ab")
    assert trials.advance(lambda _: True) == ("a",)
    assert trials.advance(lambda one: one == "b") == ("b",)


def test_clusters_are_kept_while_a_referring_route_is_rolled_back() -> None:
    policy = NackPolicy()
    old = [cluster("old", "1"), resource(ENDPOINT, "old", b"1"), resource(ROUTE, "rc", b"->old")]
    policy.record_ack("v", snapshot(old).of(CLUSTER).values())
    policy.record_ack("v", snapshot(old).of(ENDPOINT).values())
    policy.record_ack("v", snapshot(old).of(ROUTE).values())
    new = [cluster("new", "1"), resource(ROUTE, "rc", b"->new and bad")]
    served = policy.effective("v", snapshot(new), contents(new[1]))
    assert values(served) == {"new": "1", "old": "1"}
    assert values(served, ROUTE) == {"rc": "->old"}
    assert set(served.of(ENDPOINT)) == {"old"}


def test_refused_cluster_stays_out_while_a_route_is_rolled_back() -> None:
    policy = NackPolicy()
    policy.record_ack("v", [bad := cluster("c", "bad"), resource(ROUTE, "rc", b"old")])
    new = resource(ROUTE, "rc", b"bad")
    served = policy.effective("v", snapshot([bad, new]), contents(bad, new))
    assert values(served, ROUTE) == {"rc": "old"}
    assert values(served) == {}
    assert served.rolled_back_of(CLUSTER) == {"c"}


def test_nacks_of_unwanted_content_are_forgotten() -> None:
    policy = NackPolicy()
    held(policy, cluster("c", "bad"))
    assert policy.prune([snapshot([cluster("c", "other")])], 0.0)
    assert not policy.rejected_contents


def test_nacked_contents_are_bounded() -> None:
    policy = NackPolicy()
    policy.record_ack("v", [cluster("c", "good")])
    held(policy, bad := cluster("c", "bad"))
    for number in range(MAX_REJECTED):
        refuse(policy, [cluster(f"c{number}", "1")], host="mallory")
    assert len(policy.rejected_contents) == MAX_REJECTED
    wanted = snapshot([bad])
    assert policy.effective("v", wanted) is wanted, "nothing is held back without a record of who refused it"


def test_unwanted_acked_content_expires() -> None:
    policy = NackPolicy()
    policy.record_ack("v", [cluster("c", "good")])
    for now_s in (0.0, 500.0):
        policy.prune([Snapshot()], now_s)
    bad = cluster("c", "bad")
    assert values(policy.effective("v", snapshot([bad]), contents(bad))) == {"c": "good"}
    policy.prune([Snapshot()], 1_000.0)
    assert values(policy.effective("v", snapshot([bad]), contents(bad))) == {}


def test_rolled_back_cluster_restores_its_endpoints_version() -> None:
    policy = NackPolicy()
    endpoints = resource(ENDPOINT, "c", b"same")
    before = snapshot([cluster("c", "good"), endpoints])
    policy.record_ack("v", before.of(CLUSTER).values())
    after = snapshot([cluster("c", "bad"), endpoints])
    assert after.of(ENDPOINT)["c"].version != before.of(ENDPOINT)["c"].version
    served = policy.effective("v", after, contents(after.of(CLUSTER)["c"]))
    assert served.of(ENDPOINT)["c"].version == before.of(ENDPOINT)["c"].version


def test_restored_refusals_count_only_with_who_refused() -> None:
    policy, later, other = NackPolicy(), NackPolicy(), NackPolicy()
    policy.record_ack("v", [cluster("c", "good")])
    held(policy, bad := cluster("c", "bad"))
    (kept,) = policy.rejections()
    assert [one.host for one in kept.refusals] == ["10.0.0.0", "10.0.0.1", "10.0.0.2"]
    later.restore([kept])
    wanted = snapshot([bad])
    assert values(later.effective("v", wanted)) == {"c": "good"}
    other.restore(
        [type(kept)(type_url=CLUSTER, name="c", content=kept.content, refusals=(), instead=kept.instead)]
    )
    assert other.effective("v", wanted) is wanted
    assert values(other.effective("v", wanted, contents(bad))) == {"c": "good"}, "which is known from then"


def test_resources_accepted_together_again_count_unless_others_came_between() -> None:
    policy = NackPolicy()
    old, new = (cluster("c", "old"), cluster("d", "same")), [cluster("c", "new")]
    for accepted in (old, old, new, old):
        policy.record_ack("v", accepted)
        newest = policy.accepted("v", (CLUSTER, "c"))[0]
        assert newest is accepted[0]
