"""Cost of the control loop: 1 000 engines, 1 000 proxies, telemetry each second, ten rounds a second.

Each round folds new engine reports and the newest traffic, then decides. Inputs are prepared and time is
simulated, so only CPU time of the loop is measured: folding and deciding. Reported separately: translating and
encoding the configuration of each view, and a runtime layer for each proxy whose share changed. Midway some
engines fail and later recover, which makes rounds most expensive.
"""

import cProfile
import pstats
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from rich.console import Console

from benchmarks.harness import ResultColumn, option_parser, publish, result_table
from benchmarks.pool_documents import pool_documents
from chaos.history.request_outcomes import quantile
from engine.report import EngineReport, ReportSource, Verdict
from policies.load import load_contents
from policies.model import PolicySet
from policies.route import PriorityClass
from xds_server.decide.decide import decide
from xds_server.decide.decision_memory import NO_MEMORY
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.model.fleet import Fleet, declared, with_report, with_traffic
from xds_server.model.pool_traffic import EngineTraffic, LatencyTail, PoolTraffic, Proxy, ProxyTraffic
from xds_server.model.snapshot import OwnResources
from xds_server.model.view import View
from xds_server.reconcile.pipeline import BuildInputs, Pipeline

TARGET_CORE_PERCENT: Final = 50.0
ROUND_S: Final = 0.1
REPORT_EACH_S: Final = 1.0
ZONES: Final = 3
SLOTS: Final = 16
SERVICE_S: Final = 2.0
UTILIZATION: Final = 0.7
FAILING_SHARE: Final = 0.05
WARM_UP_ROUNDS: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSize:
    """How much there is of everything; engines and proxies are dealt out to the pools in turn."""

    engines: int
    proxies: int
    pools: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideLoopRow:
    """One size. Milliseconds per round; ``core_percent`` is the share of one core that ten rounds a second take.

    ``loop``: reports folded and decisions made. ``whole``: with translation and encoding.
    """

    size: FleetSize
    rounds: int
    fold_ms: float
    decide_p50_ms: float
    decide_p99_ms: float
    loop_core_percent: float
    whole_core_percent: float
    own_layers_per_round: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundInput:
    """What one round gets."""

    reports: tuple[EngineReport, ...]
    traffic: Mapping[str, PoolTraffic]


def measure(
    size: FleetSize, rounds: int, profile: cProfile.Profile | None = None, *, replays: int = 1
) -> DecideLoopRow:
    """One row: of each round the least of its replays, for other work only adds."""
    policies = _policies(size)
    moments = list(_moments(policies, size, rounds))
    loops = [_loop(policies, size, moments, profile) for _ in range(replays)]
    wholes = [_whole(policies, size, moments) for _ in range(replays)]
    loop_s, fold_s = _least([loop for loop, _ in loops]), _least([fold for _, fold in loops])
    whole_s, layers = _least([whole for whole, _ in wholes]), wholes[0][1]
    decide_s = [all_s - one_s for all_s, one_s in zip(loop_s, fold_s, strict=True)]
    return DecideLoopRow(
        size=size,
        rounds=len(loop_s),
        fold_ms=1000 * sum(fold_s) / len(fold_s),
        decide_p50_ms=1000 * (quantile(decide_s, 0.5) or 0.0),
        decide_p99_ms=1000 * (quantile(decide_s, 0.99) or 0.0),
        loop_core_percent=100 * sum(loop_s) / len(loop_s) / ROUND_S,
        whole_core_percent=100 * sum(whole_s) / len(whole_s) / ROUND_S,
        own_layers_per_round=layers / len(whole_s),
    )


def _least(replays: Sequence[Sequence[float]]) -> list[float]:
    """The least of each round."""
    return [min(same) for same in zip(*replays, strict=True)]


def _loop(
    policies: PolicySet, size: FleetSize, moments: Sequence[RoundInput], profile: cProfile.Profile | None
) -> tuple[list[float], list[float]]:
    """Processor seconds of each round after the first few, and of the folding in it."""
    fleet, now_s = declared(policies), 1000.0
    memory, proxies = NO_MEMORY, MappingProxyType({proxy.node: proxy for proxy in _proxies(size)})
    connected = ConnectedProxies(
        by_node=proxies,
        by_role={"sidecar": len(proxies)},
        calling_zones=frozenset(proxy.zone for proxy in proxies.values()),
    )
    whole_s, fold_s = [], []
    for place, moment in enumerate(moments):
        measured = place >= WARM_UP_ROUNDS
        if profile is not None and measured:
            profile.enable()
        began_s = time.process_time()
        fleet = _folded(fleet, moment, now_s)
        folded_s = time.process_time()
        _, memory = decide(policies, fleet, memory, proxies=connected, now_s=now_s)
        ended_s = time.process_time()
        if profile is not None:
            profile.disable()
        if measured:
            whole_s.append(ended_s - began_s)
            fold_s.append(folded_s - began_s)
        now_s += ROUND_S
    return whole_s, fold_s


def _whole(policies: PolicySet, size: FleetSize, moments: Sequence[RoundInput]) -> tuple[list[float], int]:
    """Processor seconds of each round with all that follows, and how many layers of proxies were new."""
    fleet, now_s, pipeline = declared(policies), 1000.0, Pipeline()
    memory = NO_MEMORY
    nodes = MappingProxyType(
        {proxy.node: View(zone=proxy.zone, role=proxy.role, cuts=proxy.cuts) for proxy in _proxies(size)}
    )
    whole_s, layers = [], 0
    known: Mapping[str, OwnResources] = {}
    for place, moment in enumerate(moments):
        began_s = time.process_time()
        fleet = _folded(fleet, moment, now_s)
        built = pipeline.build(
            BuildInputs(
                policies=policies,
                fleet=fleet,
                memory=memory,
                views=frozenset(nodes.values()),
                proxies_by_role={"sidecar": size.proxies},
                now_s=now_s,
                calling_zones=frozenset(view.zone for view in nodes.values()),
                nodes=nodes,
            )
        )
        ended_s = time.process_time()
        memory = built.memory
        if place >= WARM_UP_ROUNDS:
            whole_s.append(ended_s - began_s)
            layers += sum(known.get(node) is not layer for node, layer in built.own.items())
        known = built.own
        now_s += ROUND_S
    return whole_s, layers


def _folded(fleet: Fleet, moment: RoundInput, now_s: float) -> Fleet:
    for report in moment.reports:
        fleet = with_report(fleet, report, now_s)
    return with_traffic(fleet, moment.traffic)


def _moments(policies: PolicySet, size: FleetSize, rounds: int) -> Iterator[RoundInput]:
    """Rounds of reports and traffic. In the third quarter of them some engines hang and others answer errors."""
    rng = random.Random(1)
    names = [(pool, endpoint.name) for pool, one in policies.pools.items() for endpoint in one.spec.endpoints]
    picked = rng.sample(names, max(1, round(FAILING_SHARE * len(names))))
    failing, hanging = set(picked), set(picked[::2])
    nodes = [proxy.node for proxy in _proxies(size)]
    engines = {name: EngineTraffic() for name in names}
    proxies: dict[str, dict[str, ProxyTraffic]] = {pool: {} for pool in policies.pools}
    stretch = max(1, round(REPORT_EACH_S / ROUND_S))
    total = WARM_UP_ROUNDS + rounds
    for place in range(total):
        now_s = 1000.0 + place * ROUND_S
        trouble = WARM_UP_ROUNDS + rounds // 2 <= place < WARM_UP_ROUNDS + 3 * rounds // 4
        reports = []
        for name in names[place % stretch :: stretch]:
            bad = trouble and name in failing
            reports.append(_report(*name, place, hung=trouble and name in hanging, rng=rng, now_s=now_s))
            engines[name] = _engine_traffic(engines[name], failing=bad, rng=rng, now_s=now_s)
        for number, node in enumerate(nodes):
            if number % stretch == place % stretch:
                pool = f"pool-{number % size.pools}"
                proxies[pool][node] = _proxy_traffic(size, rng, now_s)
        yield RoundInput(reports=tuple(reports), traffic=_traffic(engines, proxies, now_s))


def _report(
    pool: str, engine: str, sequence: int, *, hung: bool, rng: random.Random, now_s: float
) -> EngineReport:
    in_flight = rng.randrange(8, 24)
    return EngineReport(
        pool=pool,
        engine=engine,
        verdict=Verdict.HUNG if hung else Verdict.BUSY,
        evidence="no token for 1.0 s" if hung else "tokens advance",
        observed_at_s=now_s,
        sequence=sequence + 1,
        boot_id="one",
        requests_in_flight=in_flight,
        requests_waiting=max(0, in_flight - SLOTS),
        tokens_per_s=0.0 if hung else rng.uniform(500, 700),
        source=ReportSource.AGENT,
        slots=SLOTS,
    )


def _engine_traffic(before: EngineTraffic, *, failing: bool, rng: random.Random, now_s: float) -> EngineTraffic:
    calls = round(SLOTS / SERVICE_S * UTILIZATION)
    failed = calls if failing else 0
    return replace(
        before,
        window_calls=25,
        window_failures=min(25, before.window_failures + failed) if failing else 0,
        failures_in_a_row=before.failures_in_a_row + failed if failing else 0,
        succeeded=before.succeeded + calls - failed,
        failed=before.failed + failed,
        done_per_s=float(calls - failed),
        busy=SLOTS * UTILIZATION * rng.uniform(0.9, 1.1),
        service_s=SERVICE_S * rng.uniform(0.9, 1.1),
        in_flight=rng.randrange(8, 24),
        heard_at_s=now_s,
    )


def _proxy_traffic(size: FleetSize, rng: random.Random, now_s: float) -> ProxyTraffic:
    offered = size.engines * SLOTS / SERVICE_S * UTILIZATION / size.proxies
    return ProxyTraffic(
        arrivals_per_s={PriorityClass.INTERACTIVE: offered * rng.uniform(0.7, 1.3)},
        shed_per_s={},
        in_flight_on={f"e{rng.randrange(size.engines)}": rng.randrange(1, 4) for _ in range(8)},
        load_at_s=now_s,
        heard_at_s=now_s,
    )


def _traffic(
    engines: Mapping[tuple[str, str], EngineTraffic],
    proxies: Mapping[str, Mapping[str, ProxyTraffic]],
    now_s: float,
) -> Mapping[str, PoolTraffic]:
    tail = LatencyTail(p50_s=SERVICE_S, p95_s=1.6 * SERVICE_S, p99_s=2 * SERVICE_S, calls=1000)
    by_pool: dict[str, dict[str, EngineTraffic]] = {pool: {} for pool in proxies}
    for (pool, engine), traffic in engines.items():
        by_pool[pool][engine] = traffic
    return MappingProxyType(
        {
            pool: PoolTraffic(
                engines=MappingProxyType(by_pool[pool]),
                proxies=MappingProxyType(dict(some)),
                answer=tail,
                heard_at_s=now_s,
            )
            for pool, some in proxies.items()
        }
    )


def _proxies(size: FleetSize) -> list[Proxy]:
    return [
        Proxy(node=f"proxy-{number}", zone=f"z{number % ZONES}", role="sidecar", cuts=True)
        for number in range(size.proxies)
    ]


def _policies(size: FleetSize) -> PolicySet:
    """Pools whose engines are never dialled."""

    def endpoint(number: int) -> dict[str, object]:
        return {"name": f"e{number}", "address": "127.0.0.1", "port": 1 + number, "zone": f"z{number % ZONES}"}

    text = pool_documents(size.pools, size.engines, endpoint, slotsPerEngine=SLOTS, serviceTime=f"{SERVICE_S:g}s")
    return load_contents({Path("bench.yaml"): text.encode()})


COLUMNS: Final[Sequence[ResultColumn[DecideLoopRow]]] = (
    ResultColumn(heading="engines", cell=lambda row: f"{row.size.engines}"),
    ResultColumn(heading="proxies", cell=lambda row: f"{row.size.proxies}"),
    ResultColumn(heading="pools", cell=lambda row: f"{row.size.pools}"),
    ResultColumn(heading="reports, per round", cell=lambda row: f"{row.fold_ms:.1f} ms"),
    ResultColumn(
        heading="decide p50 (p99)", cell=lambda row: f"{row.decide_p50_ms:.1f} ms ({row.decide_p99_ms:.1f})"
    ),
    ResultColumn(heading="loop, of a core", cell=lambda row: f"{row.loop_core_percent:.1f} %"),
    ResultColumn(heading="with translation", cell=lambda row: f"{row.whole_core_percent:.1f} %"),
    ResultColumn(heading="own layers per round", cell=lambda row: f"{row.own_layers_per_round:.0f}"),
)


def main(argv: Sequence[str]) -> int:
    """Measure, print, write; 1 when the loop needs more than half a core in any size."""
    parser = option_parser("decide_loop", __doc__)
    parser.add_argument("--engines", type=int, default=1000)
    parser.add_argument("--proxies", type=int, default=1000)
    parser.add_argument("--pools", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--rounds", type=int, default=120, help="measured, after a warm-up")
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="write a profile of the loop, and print its top"
    )
    options = parser.parse_args(argv)
    profile = cProfile.Profile() if options.profile is not None else None
    rows = [
        measure(FleetSize(engines=options.engines, proxies=options.proxies, pools=pools), options.rounds, profile)
        for pools in options.pools
    ]
    table = result_table(f"the control loop at {1 / ROUND_S:g} rounds per second", COLUMNS, rows)
    if profile is not None:
        Console(width=130).print(table)
        profile.dump_stats(options.profile)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return 0
    met = all(row.loop_core_percent <= TARGET_CORE_PERCENT for row in rows)
    answer = {"target_core_percent": TARGET_CORE_PERCENT, "rows": [asdict(row) for row in rows]}
    return publish([table], options.json, answer, met=met)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
