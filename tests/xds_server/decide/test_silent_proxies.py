"""A pool is decided again for a proxy that came or left only if the proxies then share it otherwise."""

from pathlib import Path

import pytest

from policies.load import load_contents
from policies.route import PriorityClass
from xds_server.decide.decide import decide
from xds_server.decide.decision_memory import NO_MEMORY, DecisionMemory, PoolMemory
from xds_server.decide.decisions import PoolDecisions
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.model.fleet import declared, with_traffic
from xds_server.model.pool_traffic import PoolTraffic, Proxy, ProxyTraffic
from xds_server.model.view import GRPC_ROLE

ENGINES = ", ".join(f"{{address: 10.0.0.{n}, port: 8000, zone: z{n}}}" for n in (1, 2, 3))
SHADOW = (
    "---\napiVersion: switchgear.dev/v1alpha1\nkind: ResiliencePolicy\nmetadata: {name: r}\n"
    "spec: {pools: [p], mode: shadow}\n"
)


class OnePool:
    """Three engines, and any number of proxies."""

    def __init__(self, more: str = "") -> None:
        text = (
            "apiVersion: switchgear.dev/v1alpha1\nkind: EnginePool\nmetadata: {name: p}\n"
            f"spec: {{model: m, endpoints: [{ENGINES}], probe: {{enabled: false}}}}\n"
        )
        self.policies = load_contents({Path("p.yaml"): (text + more).encode()})
        self.fleet = declared(self.policies)
        self.memory: DecisionMemory = NO_MEMORY
        self.now_s = 100.0
        self.proxies: dict[str, Proxy] = {}

    def arrive(self, *nodes: str, zone: str = "z1") -> PoolMemory:
        """The memory of the pool with these proxies more; their first letter is their role's."""
        for node in nodes:
            role = {"g": "gateway", "s": "sidecar", "c": GRPC_ROLE}[node[0]]
            self.proxies[node] = Proxy(node=node, zone=zone, role=role)
        self.now_s += 0.01
        roles: dict[str, int] = {}
        for one in self.proxies.values():
            roles[one.role] = roles.get(one.role, 0) + 1
        connected = ConnectedProxies(
            by_node=dict(self.proxies), by_role=roles, calling_zones=frozenset({"", "z1"})
        )
        _, self.memory = decide(self.policies, self.fleet, self.memory, proxies=connected, now_s=self.now_s)
        return self.memory.pools["p"]

    def settle(self, *nodes: str) -> PoolMemory:
        """The same, once time alone changes nothing any more."""
        self.arrive(*nodes)
        self.now_s += 100.0
        return self.arrive()


@pytest.fixture
def pool() -> OnePool:
    return OnePool()


def test_silent_sidecar_changes_nothing(pool: OnePool) -> None:
    before = pool.settle("s1")
    for number in range(2, 50):
        assert pool.arrive(f"s{number}") is before
    del pool.proxies["s3"]
    assert pool.arrive() is before


def limits(decided: PoolDecisions) -> dict[str, int]:
    return {role: ceiling.interactive for role, ceiling in decided.ceilings.items()}


def test_gateway_takes_its_part(pool: OnePool) -> None:
    before = limits(pool.settle("g1", "s1").decided)["gateway"]
    decided = pool.arrive("g2").decided
    assert limits(decided)["gateway"] == -(-before // 2)
    assert decided.admission is not None
    assert set(decided.admission.by_proxy) == {"g1", "g2"}


def test_first_client_without_proxy_gets_a_ceiling(pool: OnePool) -> None:
    pool.settle("g1")
    assert GRPC_ROLE in pool.arrive("c1").decided.ceilings


def test_retries_are_divided_by_all_proxies() -> None:
    pool = OnePool(SHADOW)
    alone = pool.settle("g1", "s1").decided.admission
    many = pool.arrive("s2", "s3", "s4").decided.admission
    assert alone is not None
    assert many is not None
    assert many.retry_min_concurrency < alone.retry_min_concurrency


def test_sidecars_count_one_by_one_while_any_has_traffic(pool: OnePool) -> None:
    pool.settle("s1", "s2")
    seen = ProxyTraffic(
        arrivals_per_s={PriorityClass.INTERACTIVE: 5.0}, shed_per_s={}, heard_at_s=pool.now_s, load_at_s=pool.now_s
    )
    pool.fleet = with_traffic(pool.fleet, {"p": PoolTraffic(proxies={"s1": seen}, heard_at_s=pool.now_s)})
    before = pool.arrive()
    assert before.admission is not None
    many = pool.arrive(*(f"s{number}" for number in range(3, 60)))
    assert many.admission is not None
    assert many.admission.idle_limit < before.admission.idle_limit
