"""What the control plane sees of thousands of engines: reports and traffic, made from arrays.

Engines that are well differ by chance alone, and chance decides nothing; so they share one value, that of their
mean. Engines in trouble, or just out of it, have values of their own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from engine.report import CanaryResults, EngineReport, ReportSource, Verdict
from policies.route import PriorityClass
from xds_server.model.fleet import Engine, Fleet, fleet_of
from xds_server.model.pool_traffic import EngineTraffic, LatencyTail, PoolTraffic, ProxyTraffic

_CANARY_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What an agent says of its engine. ``boot`` numbers the engine's process; ``proved``: its newest canary
    brought a token.
    """

    verdict: Verdict
    boot: int
    proved: bool


def reported(fleet: Fleet, pool: str, said: Mapping[int, Said], now_s: float) -> Fleet:
    """The fleet with fresh reports of these engines, by place."""
    engines = list(fleet.pools[pool])
    for place, one in said.items():
        engines[place] = _with_report(engines[place], one, now_s)
    return replace(fleet_of({**fleet.pools, pool: tuple(engines)}), traffic=fleet.traffic)


def _with_report(engine: Engine, said: Said, now_s: float) -> Engine:
    known, good = engine.report, said.verdict.good
    in_row = 1 if known is None or known.canary is None else known.canary.in_row + 1
    report = EngineReport(
        pool=engine.id.pool,
        engine=engine.id.engine,
        verdict=said.verdict,
        evidence="simulated",
        observed_at_s=now_s,
        sequence=1 if known is None else known.sequence + 1,
        boot_id=str(said.boot),
        source=ReportSource.AGENT,
        slots=engine.slots,
        canary=CanaryResults(in_row=in_row if said.proved else 0, at_s=now_s, took_s=_CANARY_S),
    )
    return replace(
        engine,
        report=report,
        received_at_s=now_s,
        good_looks=engine.good_looks + 1 if good else 0,
        bad_looks=0 if good else engine.bad_looks + 1,
    )


def engine_traffic(
    *,
    done_per_s: float,
    service_s: float,
    in_flight: float,
    window: int,
    failed_share: float,
    succeeded: int,
    failed: int,
    now_s: float,
) -> EngineTraffic:
    """What proxies tell of one engine that fails so large a share of its ``window`` newest calls; ``succeeded``
    and ``failed`` are all that it ever had.
    """
    failures = round(window * failed_share)
    return EngineTraffic(
        window_calls=window,
        window_failures=failures,
        failures_in_a_row=window if failed_share >= 1.0 else 0,
        newest_failed=(1 << min(32, failures)) - 1,
        succeeded=succeeded,
        failed=failed,
        done_per_s=done_per_s * (1 - failed_share),
        busy=done_per_s * (1 - failed_share) * service_s,
        service_s=service_s if done_per_s * (1 - failed_share) > 0 else None,
        in_flight=round(in_flight),
        heard_at_s=now_s,
    )


def pool_traffic(
    names: Sequence[str],
    usual: EngineTraffic,
    own: Mapping[int, EngineTraffic],
    *,
    proxies: Mapping[str, float],
    arrivals_per_s: float,
    refused_per_s: float,
    held: Mapping[str, int],
    tail: LatencyTail | None,
    now_s: float,
) -> PoolTraffic:
    """The traffic of a pool. ``own`` is by place, ``held`` by engines in trouble; ``proxies`` are shares."""
    engines = dict.fromkeys(names, usual)
    engines.update({names[place]: traffic for place, traffic in own.items()})
    kind = PriorityClass.INTERACTIVE
    return PoolTraffic(
        engines=engines,
        proxies={
            node: ProxyTraffic(
                arrivals_per_s={kind: arrivals_per_s * share},
                shed_per_s={kind: refused_per_s * share} if refused_per_s else {},
                in_flight_on={engine: part for engine, count in held.items() if (part := round(count * share))},
                load_at_s=now_s,
                heard_at_s=now_s,
            )
            for node, share in proxies.items()
        },
        answer=tail,
        heard_at_s=now_s,
    )
