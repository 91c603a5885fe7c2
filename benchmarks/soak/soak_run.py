"""One soak, from its seed to what was seen of it."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.soak.attack_corpus import ENEMY
from benchmarks.soak.cpu_starvation import CpuWaitRecorder, starved_s
from benchmarks.soak.fault_plan import fault_plan
from benchmarks.soak.growth_rate import GrowthRate, GrowthVerdict, climbs, growth_rate, least
from benchmarks.soak.invariants import behind, incomplete, refused, unexplained
from benchmarks.soak.lost_requests import LostRequest, SoakTimeline
from benchmarks.soak.process_usage import MEASURES, ProcessUsage, process_usage
from benchmarks.soak.soak_testbed import ControlPlanes, SoakTestbed
from benchmarks.testbed import LIMIT_S
from chaos.history.request_outcomes import quantile
from chaos.processes import ChildProcesses

LOOK_EACH_S: Final = 1.0
SLOWEST: Final = 5
COUNTS: Final = ("descriptors", "threads")
OWN: Final = "own_bytes"
DIRTY: Final = "dirty_bytes"
LEAST: Final = "least_own_bytes"
LEAST_DIRTY: Final = "least_dirty_bytes"
"""The lowest own memory of each minute; and without pages of files."""

ENGINES_OF_THE_BENCH: Final = "engines-"
"""Their books grow with each call, on purpose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakFleet:
    """Size of the fleet, and requests a second."""

    engines: int = 30
    agents: int = 3
    envoys: int = 3
    rate_per_s: float = 30.0
    streams_per_s: float = 2.0


FULL: Final = SoakFleet()
SMALL: Final = SoakFleet(engines=10, agents=2, envoys=2, rate_per_s=3.0, streams_per_s=0.3)
"""For long soaks: about half a core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureGrowth:
    """Growth of one measure of one process; ``climb`` is empty unless it climbs."""

    process: str
    measure: str
    growth: GrowthRate
    word: GrowthVerdict
    climb: str


@dataclass(slots=True, kw_only=True)
class SoakResult:
    """What a soak saw; ``findings`` are what did not hold. Empty ``grown``: it was too short to look at."""

    seed: int
    length_s: float
    troubles: dict[str, int]
    requests: int = 0
    streams: int = 0
    answered_s: dict[str, float] = field(default_factory=dict)
    lost: list[LostRequest] = field(default_factory=list)
    excused: list[LostRequest] = field(default_factory=list)
    slowest: list[LostRequest] = field(default_factory=list)
    starved_s: float = 0.0
    grown: list[MeasureGrowth] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class _ProcessSamples:
    """Samples of each process, by name and id, and CPU waits.

    ``heaps`` are what Envoys say that they have taken for their heap, and allocated in it, in bytes, by measure.
    What they hold of their own climbs within the heap for a long time, as pages of it are touched for the first
    time.
    """

    samples: dict[tuple[str, int], list[ProcessUsage]] = field(default_factory=dict)
    heaps: dict[tuple[str, int], dict[str, list[tuple[float, float]]]] = field(default_factory=dict)
    waits: CpuWaitRecorder = field(default_factory=CpuWaitRecorder)

    def look(self, processes: Mapping[str, int], at_s: float) -> None:
        waited_s: dict[tuple[str, int], float] = {}
        for name, pid in processes.items():
            found = process_usage(pid, at_s)
            if found is not None:
                self.samples.setdefault((name, pid), []).append(found)
                waited_s |= {(name, thread): total_s for thread, total_s in found.waited_s.items()}
        self.waits.sample(at_s, waited_s)


async def soak(
    length_s: float,
    seed: int,
    folder: Path,
    *,
    fleet: SoakFleet = FULL,
    control_planes: ControlPlanes,
    enemy: bool = False,
    verbose: bool = False,
) -> SoakResult:
    """One soak of this length, if wanted with a standing enemy; logs, ledger and policies stay in the folder."""
    kills = max(1, round(length_s / 120))
    troubles = fault_plan(
        seed,
        length_s,
        engines=fleet.engines,
        agents=fleet.agents,
        envoys=fleet.envoys,
        kills=kills,
        replicas=control_planes.count,
    )
    seen = SoakResult(seed=seed, length_s=length_s, troubles=dict(Counter(one.what.value for one in troubles)))
    looks = _ProcessSamples()
    async with (
        ChildProcesses(log_dir=folder / "logs") as processes,
        SoakTestbed(
            folder / "site",
            processes,
            engines=fleet.engines,
            agents=fleet.agents,
            envoys=fleet.envoys,
            control_planes=control_planes,
            enemy_seed=seed if enemy else None,
            verbose=verbose,
        ) as site,
    ):
        stop = asyncio.Event()
        asking = asyncio.create_task(site.load(fleet.rate_per_s, fleet.streams_per_s, seed, stop))
        async with asyncio.TaskGroup() as group:
            group.create_task(_watch(site, seen, looks, length_s))
            for trouble in troubles:
                await asyncio.sleep(max(0.0, trouble.at_s - site.now_s()))
                group.create_task(site.inject(trouble))
        stop.set()
        await asking
        seen.findings += [*await _settled(site), *site.died()]
        _count(seen, site, looks, await site.attempts())
    _judge_growth(seen, looks)
    return seen


async def _watch(site: SoakTestbed, seen: SoakResult, looks: _ProcessSamples, length_s: float) -> None:
    """Look at everything while trouble lasts."""
    while (at_s := site.now_s()) < length_s:
        processes = site.processes()
        looks.look(processes, at_s)
        for name, heap in (await site.heaps()).items():
            if name in processes:
                series = looks.heaps.setdefault((name, processes[name]), {})
                for measure, size_bytes in heap.items():
                    series.setdefault(measure, []).append((at_s, size_bytes))
        for replica in site.replicas:
            engines = await site.get_json(replica, "/v1/engines")
            proxies = await site.get_json(replica, "/v1/proxies")
            found = [] if engines is None else [*unexplained(engines["engines"])]
            found += [] if proxies is None else [*refused(_honest(proxies))]
            seen.findings += [f"at {at_s:.0f} s, {replica.name}: {one}" for one in found]
        await asyncio.sleep(LOOK_EACH_S)


async def _settled(site: SoakTestbed) -> list[str]:
    """Findings that remain after all faults ended and the recovery time passed."""
    give_up_at = time.monotonic() + LIMIT_S
    while True:
        wrong = await _wrong(site)
        if not wrong or time.monotonic() > give_up_at:
            return wrong
        await asyncio.sleep(LOOK_EACH_S)


async def _wrong(site: SoakTestbed) -> list[str]:
    connected: list[dict[str, Any]] = []
    found: list[str] = []
    for replica in site.replicas:
        proxies, engines = await site.get_json(replica, "/v1/proxies"), await site.get_json(replica, "/v1/engines")
        policies = await site.get_json(replica, "/v1/policies")
        if proxies is None or engines is None or policies is None:
            return [f"the {replica.name} does not answer"]
        known: list[dict[str, Any]] = engines["engines"]
        lines = replica.ledger.read_text().splitlines()
        connected += _honest(proxies)
        found += incomplete(lines, known, replica.kills)
        found += [
            f"{one['engine']} is still {one['health']}: {one['reason']}"
            for one in known
            if one["health"] != "HEALTHY"
        ]
        if policies["state"] != "accepted":
            found.append(f"the policies are {policies['state']}")
    return [*behind(connected, site.envoys), *found]


def _honest(proxies: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The proxies that are not the enemy."""
    return [one for one in proxies["proxies"] if not one["node"].startswith(ENEMY)]


def _count(
    seen: SoakResult, site: SoakTestbed, looks: _ProcessSamples, attempts: Mapping[str, Sequence[Any]]
) -> None:
    """Say what became of the requests."""
    waits = looks.waits.waits
    around = SoakTimeline(
        attempts=attempts,
        spells=site.spells,
        waits=waits,
        engines=tuple(site.engines),
        began_s=site.began_s,
    )
    found = around.losses(site.outcomes)
    seen.slowest = around.slowest((one for one in site.outcomes if not one.streaming), SLOWEST)
    seen.lost = [one for one in found if not one.excuse]
    seen.excused = [one for one in found if one.excuse]
    seen.requests = len(site.outcomes)
    seen.streams = sum(one.streaming for one in site.outcomes)
    seen.starved_s = round(starved_s(waits), 1)
    latencies_s = [one.latency_s for one in site.outcomes if one.ok and not one.streaming]
    for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
        value_s = quantile(latencies_s, share)
        if value_s is not None:
            seen.answered_s[name] = round(value_s, 3)
    seen.findings += [f"lost, and another engine could have served it: {one}" for one in seen.lost]


def _judge_growth(seen: SoakResult, looks: _ProcessSamples) -> None:
    """Say of each part what it grew by, from that of its processes which lived longest."""
    longest: dict[str, tuple[str, int]] = {}
    for key, held_by_it in looks.samples.items():
        if key[0] not in longest or len(held_by_it) > len(looks.samples[longest[key[0]]]):
            longest[key[0]] = key
    for name, key in sorted(longest.items()):
        if name.startswith(ENGINES_OF_THE_BENCH):
            continue
        held_by_it = looks.samples[key]
        measured: dict[str, Sequence[tuple[float, float]]] = {
            measure: [(one.at_s, float(getattr(one, measure))) for one in held_by_it] for measure in MEASURES
        }
        measured |= {LEAST: least(measured[OWN]), LEAST_DIRTY: least(measured[DIRTY]), **looks.heaps.get(key, {})}
        for measure, series in measured.items():
            grown = growth_rate(series)
            if grown is None:
                continue
            climb = climbs(series) if measure in COUNTS else ""
            seen.grown.append(
                MeasureGrowth(process=name, measure=measure, growth=grown, word=grown.verdict, climb=climb)
            )
            if climb:
                seen.findings.append(f"{measure} of {name} {climb}")
            elif measure not in COUNTS and grown.verdict is GrowthVerdict.GROWS:
                seen.findings.append(f"{measure} of {name} grow by {grown.low:.1f} to {grown.high:.1f} % an hour")
