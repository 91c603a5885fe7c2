"""Division of quotas by use: pure functions of recent requests."""

import random
import time
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from policies.model import PolicySet
from tests.policies.test_external_services import route
from tests.policies.test_tenants import TRUSTED
from tests.xds_server.decide.admission.test_quota_proxies import policies, proxy
from xds_server.decide.admission.quota_parts import FLOOR, MOVE_EACH_S, NEAR, divided, quota_parts
from xds_server.decide.decisions import PortParts
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.model.pool_traffic import TenantDemand

NODES = [f"n{number}" for number in range(12)]
REQUESTS = st.floats(0, 1e6, allow_nan=False)
DEMAND = st.dictionaries(st.sampled_from(NODES), REQUESTS)
SOME = st.sets(st.sampled_from(NODES), min_size=1).map(sorted)
TENANT = (8080, "a")
EVERY = policies(route("a", TRUSTED))


@given(DEMAND, SOME, st.integers(1, 40))
def test_parts_are_the_whole_quota_at_most(demand: Mapping[str, float], nodes: list[str], count: int) -> None:
    parts = divided(demand, nodes, count=count)
    assert parts.keys() == set(nodes)
    share = len(nodes) / max(count, len(nodes))
    assert abs(sum(parts.values()) - share) < 1e-9
    assert min(parts.values()) >= FLOOR * share / len(nodes) * (1 - 1e-9), "also without requests"


@given(DEMAND, SOME)
def test_parts_follow_demand(demand: Mapping[str, float], nodes: list[str]) -> None:
    parts = divided(demand, nodes, count=1)
    for one in nodes:
        for other in nodes:
            if demand.get(one, 0.0) > demand.get(other, 0.0):
                assert parts[one] >= parts[other]
    total = sum(demand.get(node, 0.0) for node in nodes)
    if total >= 100:
        for node in nodes:
            assert abs(parts[node] - demand.get(node, 0.0) / total) <= FLOOR


@given(DEMAND, SOME, st.floats(1, 1e3))
def test_busier_tenant_with_the_same_callers_has_nearly_the_same_parts(
    demand: Mapping[str, float], nodes: list[str], times: float
) -> None:
    total = sum(demand.get(node, 0.0) for node in nodes)
    if total < 100:
        return
    parts = divided(demand, nodes, count=1)
    more = divided({node: asked * times for node, asked in demand.items()}, nodes, count=1)
    assert all(abs(parts[node] - more[node]) < 1e-9 for node in nodes)


def test_without_requests_and_with_few_parts_are_even() -> None:
    assert divided({}, NODES[:4], count=4) == dict.fromkeys(NODES[:4], 0.25)
    few = divided({"n0": 0.1}, NODES[:4], count=4)
    assert min(few.values()) > 0.15


def demand(nodes: list[str], **asked: float) -> TenantDemand:
    above = {TENANT: 1e6}
    return TenantDemand(by_tenant={TENANT: asked} if asked else {}, per_s=above if asked else {}, nodes=nodes)


def parts(
    asked: TenantDemand,
    *,
    count: int = 3,
    before: Mapping[int, PortParts] | None = None,
    now_s: float = 100.0,
    every: PolicySet = EVERY,
) -> Mapping[int, PortParts]:
    connected = ConnectedProxies(by_node={one: proxy(one) for one in ("n0", "n1", "n2")}, demand=asked)
    return quota_parts(every, {8080: count}, connected, before or {}, now_s)


HERE = ["n0", "n1", "n2"]


def test_parts_move_after_a_while_and_only_if_they_differ() -> None:
    first = parts(demand(HERE, n0=90.0, n1=90.0, n2=90.0))
    soon = parts(demand(HERE, n0=300.0), before=first, now_s=100.0 + MOVE_EACH_S / 2)
    assert soon[8080] is first[8080]
    then = parts(demand(HERE, n0=300.0), before=first, now_s=100.0 + MOVE_EACH_S)
    assert then[8080].by_tenant["a"]["n0"] > 0.99
    noise = parts(demand(HERE, n0=90.0 * (1 + NEAR / 3), n1=90.0, n2=90.0), before=first, now_s=110.0)
    assert noise[8080].by_tenant["a"] is first[8080].by_tenant["a"]


def test_proxy_that_leaves_gives_its_part_back_at_once() -> None:
    first = parts(demand(HERE, n0=90.0, n1=90.0, n2=180.0))
    # While it still counts, an even part stays with it; afterwards the others have all.
    left = parts(demand(HERE[:2], n0=90.0, n1=90.0, n2=180.0), before=first)[8080]
    assert abs(sum(left.by_tenant["a"].values()) - 2 / 3) < 1e-9
    gone = parts(demand(HERE[:2], n0=90.0, n1=90.0), before={8080: left}, count=2)[8080]
    assert abs(gone.by_tenant["a"]["n0"] - 0.5) < 1e-9


def test_proxies_of_other_replicas_keep_even_parts() -> None:
    here = parts(demand(["n0"], n0=90.0))[8080]
    there = parts(demand(["n1", "n2"], n1=90.0))[8080]
    assert abs(here.by_tenant["a"]["n0"] - 1 / 3) < 1e-9
    assert abs(sum(there.by_tenant["a"].values()) - 2 / 3) < 1e-9


def test_newcomer_has_a_part_without_requests() -> None:
    first = parts(demand(["n0", "n1"], n0=500.0), count=2)
    then = parts(demand(HERE, n0=500.0), before=first, now_s=100.1)[8080]
    assert 0 < then.by_tenant["a"]["n2"] <= FLOOR


def test_thousands_of_proxies_are_divided_in_milliseconds() -> None:
    nodes = [f"n{number}" for number in range(5000)]
    chance = random.Random(7)
    asked = {node: chance.paretovariate(1.0) for node in nodes}
    began_s = time.process_time()
    found = divided(asked, nodes, count=len(nodes))
    assert time.process_time() - began_s < 0.25
    assert abs(sum(found.values()) - 1) < 1e-9
