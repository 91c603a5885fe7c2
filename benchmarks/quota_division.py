"""How exactly a quota holds that is divided over many proxies with uneven traffic.

Decisions and generated buckets are the control plane's. Arrivals and buckets are arrays, a tenth of a second at
a time, with Envoy's arithmetic. A tenant asks for ten times its quota. The promise: what all proxies admit in a
minute, after the first seconds, is within 2 % of the quota.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from benchmarks.harness import ResultColumn, option_parser, publish, result_table
from chaos.simulator.quota_buckets import BucketConfig, quota_config
from policies.load import load_contents
from policies.model import PolicySet
from xds_server.decide.decide import decide
from xds_server.decide.decision_memory import NO_MEMORY
from xds_server.decide.decisions import Decisions
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.model.fleet import declared
from xds_server.model.pool_traffic import Proxy
from xds_server.model.view import GATEWAY
from xds_server.translate.tenant_quotas import QUOTA_FILTER, tenant_quotas

PROXIES: Final = 1000
TENANT: Final = "nightly"
TIMES_QUOTA: Final = 10.0
STEP_S: Final = 0.1
FIRST_S: Final = 10.0
"""Until then bursts are used up, and a division by use would be learned."""

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
    """One quota with one spread of traffic; ``error_percent`` is of what was admitted, negative for too little."""

    spread: str
    quota_per_s: int
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


def proxy_buckets(policies: PolicySet, decisions: Decisions, nodes: Sequence[str]) -> list[BucketConfig]:
    """The tenant's bucket at each proxy, from the generated configuration."""
    (route,) = policies.routes.values()
    packed = tenant_quotas(route.spec.listener, decisions.quota_proxies[_PORT])
    return [quota_config(packed[QUOTA_FILTER]).buckets["tenant", TENANT]] * len(nodes)


def admitted_by_step(
    policies: PolicySet, parts: np.ndarray, demand_per_s: float, rng: np.random.Generator
) -> Iterator[tuple[float, int]]:
    """Time and requests admitted over all proxies, for each step; the control plane decides once a second."""
    nodes = [f"p{number}" for number in range(len(parts))]
    connected = ConnectedProxies(
        by_node=MappingProxyType({node: Proxy(node=node, zone="", role=GATEWAY) for node in nodes}),
        by_role={GATEWAY: len(nodes)},
    )
    fleet, memory = declared(policies), NO_MEMORY
    most, per_s = np.zeros(len(nodes)), np.zeros(len(nodes))
    tokens: np.ndarray | None = None
    for step in range(round((FIRST_S + JUDGED_S) / STEP_S)):
        now_s = step * STEP_S
        if step % round(1 / STEP_S) == 0:
            decisions, memory = decide(policies, fleet, memory, proxies=connected, now_s=now_s)
            buckets = proxy_buckets(policies, decisions, nodes)
            most, per_s = np.array([one.most for one in buckets]), np.array([one.per_s for one in buckets])
        tokens = np.minimum(most, most if tokens is None else tokens + per_s * STEP_S)
        taken = np.minimum(rng.poisson(parts * demand_per_s * STEP_S), np.floor(tokens + 1e-9))
        tokens = tokens - taken
        yield now_s, int(taken.sum())


def measured(spread: str, parts: np.ndarray, per_s: int, burst: int, seed: int) -> DivisionRow:
    """Run one minute, after the first seconds."""
    steps = admitted_by_step(quota_policies(per_s, burst), parts, TIMES_QUOTA * per_s, np.random.default_rng(seed))
    admitted_per_s = sum(count for at_s, count in steps if at_s >= FIRST_S) / JUDGED_S
    return DivisionRow(
        spread=spread,
        quota_per_s=per_s,
        burst=burst,
        admitted_per_s=admitted_per_s,
        error_percent=100.0 * (admitted_per_s / per_s - 1),
    )


COLUMNS: Final[Sequence[ResultColumn[DivisionRow]]] = (
    ResultColumn(heading="traffic", cell=lambda row: row.spread, left=True),
    ResultColumn(heading="quota", cell=lambda row: f"{row.quota_per_s}/s"),
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
        measured(spread, parts, per_s, burst, options.seed)
        for spread, parts in traffic_spreads(options.proxies).items()
        for per_s in QUOTAS_PER_S
        for burst in sorted({per_s, max(per_s, 2 * options.proxies)})
    ]
    title = f"A quota over {options.proxies} proxies, asked for {TIMES_QUOTA:g} times"
    record = {"benchmark": "quota_division", "proxies": options.proxies, "rows": [asdict(row) for row in rows]}
    met = all(row.kept for row in rows)
    return publish([result_table(title, COLUMNS, rows)], options.json, record, met=met)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
