"""How exactly a quota holds that is divided over many proxies with uneven traffic.

Counts, decisions and generated buckets are the control plane's. Arrivals and buckets are arrays, a tenth of a
second at a time, with Envoy's arithmetic. The promise: what all proxies admit in a minute, after bursts were used
up, is within 2 % of the quota, or of what the tenant asks for where that is less.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from benchmarks.harness import ResultColumn, option_parser, publish, result_table
from chaos.simulator.quota_buckets import quota_config
from policies.load import load_contents
from policies.model import PolicySet
from xds_server.decide.decide import decide
from xds_server.decide.decision_memory import NO_MEMORY
from xds_server.decide.decisions import NO_PORT_PARTS, PortParts
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.model.fleet import declared
from xds_server.model.pool_traffic import Proxy
from xds_server.model.view import GATEWAY
from xds_server.telemetry.tenant_demand import DemandByProxy
from xds_server.translate.tenant_parts import tenant_costs
from xds_server.translate.tenant_quotas import QUOTA_FILTER, tenant_quotas

PROXIES: Final = 1000
TENANT: Final = "nightly"
TIMES_QUOTA: Final = (0.8, 1.3, 10.0)
STEP_S: Final = 0.1
DECIDES_S: Final = 1.0
"""Time between two rounds, which also read what proxies logged."""

FIRST_S: Final = 40.0
"""Until then bursts are used up, and parts are learned."""

JUDGED_S: Final = 60.0
TARGET_PERCENT: Final = 2.0
QUOTAS_PER_S: Final = (100, 1000, 10_000)

_PORT: Final = 8080
_POLICY: Final = """
apiVersion: switchgear.dev/v1beta1
kind: EnginePool
metadata: {{name: chat}}
spec: {{model: lab, endpoints: [{{address: 127.0.0.1, port: 8000}}]}}
---
apiVersion: switchgear.dev/v1beta1
kind: ModelRoute
metadata: {{name: chat}}
spec:
  pools: [{{pool: chat}}]
  listener:
    port: 8080
    tenants:
      header: x-tenant
      trustHeader: true
      named: [{{name: nightly, requests: {per_minute}, per: minute, burst: {burst}}}]
      others: {{requests: 1}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DivisionRow:
    """One quota with one spread of traffic, asked for ``times``.

    ``error_percent`` is of what was admitted, negative for too little.
    """

    spread: str
    quota_per_s: int
    times: float
    burst: int
    admitted_per_s: float
    error_percent: float

    @property
    def kept(self) -> bool:
        """Whether the promise was kept."""
        return abs(self.error_percent) <= TARGET_PERCENT


def traffic_spreads(proxies: int) -> Mapping[str, np.ndarray]:
    """Each proxy's part of a tenant's requests, by the name of the spread."""
    ranks = np.arange(1, proxies + 1)
    few = np.where(ranks <= max(1, proxies // 10), 1.0, 0.0)
    shapes = {"even": np.ones(proxies), "Zipf": 1.0 / ranks, "a tenth of the proxies": few}
    return MappingProxyType({name: shape / shape.sum() for name, shape in shapes.items()})


def quota_policies(per_s: int, burst: int) -> PolicySet:
    """Policies with one tenant of this quota."""
    return load_contents({Path("quota.yaml"): _POLICY.format(per_minute=60 * per_s, burst=burst).encode()})


class ProxyBuckets:
    """The tenant's buckets at all proxies, in Envoy's tokens, by place and proxy; full at first."""

    def __init__(self, policies: PolicySet, proxies: int) -> None:
        (route,) = policies.routes.values()
        tenants = route.spec.listener.tenants
        assert tenants is not None
        self._tenants = tenants
        packed = tenant_quotas(route.spec.listener, proxies)
        buckets = quota_config(packed[QUOTA_FILTER]).buckets
        names = [name for key, name in buckets if key == "tenant" and name.split()[0] == TENANT]
        self._places = {name: place for place, name in enumerate(names)}
        self._most = np.array([[float(buckets["tenant", name].most)] for name in names])
        self._per_s = np.array([[buckets["tenant", name].per_s] for name in names])
        self._tokens = np.repeat(self._most, proxies, axis=1)
        self._every = np.arange(proxies)
        self._used = np.zeros(proxies, dtype=int)
        self._cost = np.ones(proxies)

    def set_parts(self, parts: PortParts, nodes: Sequence[str]) -> None:
        """Take from the buckets that the generated filters name."""
        costs = [tenant_costs(self._tenants, parts, node)[TENANT] for node in nodes]
        self._used = np.array([self._places[one.bucket] for one in costs])
        self._cost = np.array([float(one.cost) for one in costs])

    def take(self, arrived: np.ndarray) -> np.ndarray:
        """Let tokens flow in for a step, and admit as many of these requests as there are tokens for."""
        self._tokens = np.minimum(self._most, self._tokens + self._per_s * STEP_S)
        there = self._tokens[self._used, self._every]
        taken: np.ndarray = np.minimum(arrived, np.floor(there / self._cost + 1e-9))
        self._tokens[self._used, self._every] = there - taken * self._cost
        return taken


def admitted_by_step(
    policies: PolicySet, parts: np.ndarray, demand_per_s: float, rng: np.random.Generator
) -> Iterator[tuple[float, int, int]]:
    """Time, and requests sent and admitted over all proxies, for each step."""
    nodes = [f"p{number}" for number in range(len(parts))]
    connected = ConnectedProxies(
        by_node=MappingProxyType({node: Proxy(node=node, zone="", role=GATEWAY) for node in nodes}),
        by_role={GATEWAY: len(nodes)},
    )
    fleet, memory = declared(policies), NO_MEMORY
    buckets, demand = ProxyBuckets(policies, len(nodes)), DemandByProxy()
    demand.retain([(_PORT, TENANT)])
    decided = NO_PORT_PARTS
    unread = np.zeros(len(nodes))
    for step in range(round((FIRST_S + JUDGED_S) / STEP_S)):
        now_s = step * STEP_S
        if step % round(DECIDES_S / STEP_S) == 0:
            for place in np.flatnonzero(unread):
                demand.add((_PORT, TENANT), nodes[place], weight=float(unread[place]), at_s=now_s)
            unread[:] = 0
            proxies = replace(connected, demand=demand.demand(now_s, nodes))
            decisions, memory = decide(policies, fleet, memory, proxies=proxies, now_s=now_s)
            if decisions.quota_parts[_PORT] is not decided:
                decided = decisions.quota_parts[_PORT]
                buckets.set_parts(decided, nodes)
        arrived = rng.poisson(parts * demand_per_s * STEP_S)
        unread += arrived
        yield now_s, int(arrived.sum()), int(buckets.take(arrived).sum())


def measured(spread: str, parts: np.ndarray, per_s: int, *, burst: int, times: float, seed: int) -> DivisionRow:
    """Run one minute, after the first seconds."""
    steps = admitted_by_step(quota_policies(per_s, burst), parts, times * per_s, np.random.default_rng(seed))
    judged = [(sent, admitted) for at_s, sent, admitted in steps if at_s >= FIRST_S]
    admitted_per_s = sum(admitted for _, admitted in judged) / JUDGED_S
    due_per_s = min(per_s, sum(sent for sent, _ in judged) / JUDGED_S)
    return DivisionRow(
        spread=spread,
        quota_per_s=per_s,
        times=times,
        burst=burst,
        admitted_per_s=admitted_per_s,
        error_percent=100.0 * (admitted_per_s / due_per_s - 1),
    )


COLUMNS: Final[Sequence[ResultColumn[DivisionRow]]] = (
    ResultColumn(heading="traffic", cell=lambda row: row.spread, left=True),
    ResultColumn(heading="quota", cell=lambda row: f"{row.quota_per_s}/s"),
    ResultColumn(heading="asked", cell=lambda row: f"{row.times:g} times"),
    ResultColumn(heading="burst", cell=lambda row: f"{row.burst}"),
    ResultColumn(heading="admitted", cell=lambda row: f"{row.admitted_per_s:.1f}/s"),
    ResultColumn(heading="error", cell=lambda row: f"{row.error_percent:+.1f} %"),
    ResultColumn(heading="2 %", cell=lambda row: "kept" if row.kept else "MISSED"),
)


def main(argv: Sequence[str]) -> int:
    """Measure and print; 1 if a quota is missed by more than 2 %."""
    parser = option_parser("quota_division", __doc__)
    parser.add_argument("--proxies", type=int, default=PROXIES, help="proxies that share the quota")
    parser.add_argument("--seed", type=int, default=1, help="seed of the arrivals")
    options = parser.parse_args(argv)
    rows = [
        measured(spread, parts, per_s, burst=burst, times=times, seed=options.seed)
        for spread, parts in traffic_spreads(options.proxies).items()
        for per_s in QUOTAS_PER_S
        for times in TIMES_QUOTA
        for burst in sorted({per_s, 10 * options.proxies} if per_s >= options.proxies else {per_s})
    ]
    title = f"A quota over {options.proxies} proxies"
    record = {"benchmark": "quota_division", "proxies": options.proxies, "rows": [asdict(row) for row in rows]}
    met = all(row.kept for row in rows)
    return publish([result_table(title, COLUMNS, rows)], options.json, record, met=met)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
