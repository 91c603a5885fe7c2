"""Explanations of tenants: quota, use, refusals and the policy line."""

from dataclasses import replace
from pathlib import Path

import pytest

from policies.load import load_contents
from policies.model import PolicySet
from tests.xds_server.ledger.conftest import decided, scene
from xds_server.admin.views.context import UnknownNameError
from xds_server.admin.views.tenant_rows import tenant_rows
from xds_server.admin.views.why_subject import why
from xds_server.admin_api.status_types import Explanation
from xds_server.admin_api.tenant_types import TenantTraffic
from xds_server.decide.decisions import Decisions, FairShares, PortParts, TenantShare
from xds_server.model.fleet import Fleet

POLICIES = """\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: chat}
spec: {model: m, endpoints: [{name: r1, address: 10.0.0.1, port: 8000}]}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: chat}
spec:
  listener:
    port: 8080
    tenants:
      header: x-tenant
      trustHeader: true
      MODE
      named:
      - {name: search, requests: 90}
      - {name: lab, requests: 600, per: minute, burst: 30}
      others: {requests: 5}
  pools: [{pool: chat}]
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: second}
spec:
  listener: {port: 8081, tenants: {header: x-tenant, trustHeader: true, others: {requests: 7}}}
  pools: [{pool: chat}]
"""


def policies(mode: str = "mode: enforce") -> PolicySet:
    return load_contents({Path("chat.yaml"): POLICIES.replace("MODE", mode).encode()})


def explained(
    name: str, fleet: Fleet, traffic: TenantTraffic | None = None, proxies: int = 3, mode: str = "mode: enforce"
) -> Explanation:
    known = policies(mode)
    decisions: Decisions = replace(decided(fleet), quota_proxies={8080: proxies, 8081: proxies})
    seen = {} if traffic is None else {(8080, name.rpartition("/")[2].removeprefix("tenant:")): traffic}
    rows = tenant_rows(known, decisions, seen)
    return why(name, replace(scene(known, fleet, decisions), tenants=lambda: rows))


def test_tenant_within_its_quota_is_explained_with_parts_and_line(fleet: Fleet) -> None:
    traffic = TenantTraffic(admitted=1200, served_per_s=45.0)
    found = explained("tenant:search", fleet, traffic)
    assert found.well
    assert found.now == "tenant search of port 8080 uses 50% of its quota: 45 of 90 requests per second."
    assert found.because[0] == (
        "Quota: 90 requests per second, divided over 3 proxies: 30 per second and a burst of 30 at each."
    )
    assert found.because[1] == "Since this server started: 1200 admitted, 0 refused with 429."
    (rule,) = found.ruled_by
    assert (rule.field, rule.value, rule.place) == ("spec.listener.tenants.named[0]", "90/second", "chat.yaml:17")
    assert explained("tenant:8080/search", fleet, traffic) == found


def test_refusals_at_the_quota_need_no_other_reason(fleet: Fleet) -> None:
    found = explained("tenant:lab", fleet, TenantTraffic(served_per_s=9.9, refused_per_s=87.5), proxies=1)
    assert not found.well
    assert found.now.endswith("9.9 of 10 requests per second; 87.5 more per second are refused.")
    assert found.because[0] == "Quota: 600 requests per minute, with a burst of 30."
    assert found.why_not == ()


def test_refusals_below_the_quota_are_explained(fleet: Fleet) -> None:
    uneven = TenantTraffic(served_per_s=30.0, refused_per_s=30.0)
    assert "each of 3 proxies admits a part" in explained("tenant:search", fleet, uneven).why_not[0]
    alone = explained("tenant:search", fleet, uneven, proxies=1)
    assert alone.why_not == ("Refused below its quota: requests come in bursts of more than 90.",)


def test_others_and_shadow_say_what_they_are(fleet: Fleet) -> None:
    found = explained("tenant:8080/others", fleet, TenantTraffic(admitted=5, over_quota=7), mode="mode: shadow")
    assert "Shared by all callers whose x-tenant is absent, repeated or names no tenant." in found.because
    assert "7 were above the quota and 5 within it" in found.because[-1]
    assert found.ruled_by[0].field == "spec.listener.tenants.others"
    assert found.ruled_by[0].place == "chat.yaml:19"


def shared(fleet: Fleet, *, on: bool, admitted: float) -> Explanation:
    known = load_contents(
        {
            Path("chat.yaml"): POLICIES.replace("MODE", "fairShares: true")
            .replace("{name: search, requests: 90}", "{name: search, weight: 3, minPercent: 10}")
            .encode()
        }
    )
    one = TenantShare(
        share_per_s=30.0,
        demand_per_s=100.0,
        allowed_per_s=100.0 * admitted,
        admitted=admitted,
        enforced=True,
        since_s=0.0,
    )
    shares = FairShares(
        on=on, capacity_per_s=90.0, demand_per_s=120.0, tenants={(8080, "search"): one}, since_s=0.0
    )
    made = decided(fleet)
    decisions = replace(made, pools={**made.pools, "chat": replace(made.pools["chat"], fair_shares=shares)})
    traffic = TenantTraffic(served_per_s=40.0, over_share_per_s=60.0 if admitted < 1 else 0.0)
    rows = tenant_rows(known, decisions, {(8080, "search"): traffic})
    return why("tenant:search", replace(scene(known, fleet, decisions), tenants=lambda: rows))


def test_limited_tenant_shows_its_share_and_what_it_gets(fleet: Fleet) -> None:
    found = shared(fleet, on=True, admitted=0.4)
    assert not found.well
    assert found.now == (
        "tenant search of port 8080 has no quota of requests: 40 per second are served; 60 more per second are "
        "above its fair share."
    )
    assert found.because[-1] == (
        "Fair share of pool chat: 30 mean requests per second (weight 3, at least 10 % of it). The pool has no "
        "room for all requests: of 100 that this tenant asks for it gets 40, with what others leave; 60 % are "
        "refused with 429."
    )
    assert found.ruled_by[0].value == "no quota"


def test_tenant_of_a_pool_with_room_shows_that_none_is_limited(fleet: Fleet) -> None:
    found = shared(fleet, on=False, admitted=1.0)
    assert found.well
    assert found.because[-1].endswith("The pool has room for all requests, so no tenant is limited.")
    within = shared(fleet, on=True, admitted=1.0)
    assert within.because[-1].endswith("but this tenant asks for no more than it may.")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tenant:others", "use tenant:8080/others or tenant:8081/others"),
        ("tenant:serch", "did you mean search"),
        ("tenant:", "`switchgear get tenants` lists them"),
        ("tenant:8081/search", "no tenant '8081/search'"),
    ],
)
def test_unknown_and_ambiguous_tenants_are_refused_with_candidates(name: str, says: str, fleet: Fleet) -> None:
    with pytest.raises(UnknownNameError, match=says):
        explained(name, fleet)


def test_parts_that_follow_callers_are_stated(fleet: Fleet) -> None:
    known = policies()
    parts = PortParts(proxies=("g1", "g2"), count=2, by_tenant={"search": {"g1": 0.1, "g2": 0.9}})
    decisions: Decisions = replace(decided(fleet), quota_proxies={8080: 2}, quota_parts={8080: parts})
    rows = tenant_rows(known, decisions, {})
    found = why("tenant:search", replace(scene(known, fleet, decisions), tenants=lambda: rows))
    assert found.because[0].endswith("by what this tenant asks of each: 81 at g2, 9 at g1 per second.")
