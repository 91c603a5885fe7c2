"""One soak, from its seed to what was seen of it."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.site import LIMIT_S
from benchmarks.soak.growth import Growth, Word, climbs, growth
from benchmarks.soak.held import MEASURES, Held, held
from benchmarks.soak.invariants import behind, incomplete, refused, unexplained
from benchmarks.soak.losses import Around, Loss
from benchmarks.soak.plan import plan
from benchmarks.soak.site import Site
from benchmarks.soak.starved import Waits, starved_s
from chaos.history.outcomes import quantile
from chaos.processes import Processes

ENGINES: Final = 30
AGENTS: Final = 3
ENVOYS: Final = 3
RATE_PER_S: Final = 30.0
LOOK_EACH_S: Final = 1.0
SLOWEST: Final = 5
COUNTS: Final = ("descriptors", "threads")
ENGINES_OF_THE_BENCH: Final = "engines-"
"""Their books grow with each call, on purpose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """One measure of one process, and what can be said of its growth; ``climb`` is empty unless it climbs."""

    process: str
    measure: str
    growth: Growth
    word: Word
    climb: str


@dataclass(slots=True, kw_only=True)
class Seen:
    """What a soak saw; ``findings`` are what did not hold. Empty ``grown``: it was too short to look at."""

    seed: int
    length_s: float
    troubles: dict[str, int]
    requests: int = 0
    streams: int = 0
    answered_s: dict[str, float] = field(default_factory=dict)
    lost: list[Loss] = field(default_factory=list)
    excused: list[Loss] = field(default_factory=list)
    slowest: list[Loss] = field(default_factory=list)
    starved_s: float = 0.0
    grown: list[Grown] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class _Looks:
    """What was seen of each process, by its name and id, and how long somebody stood in line.

    ``heaps`` are what Envoys say that they have taken for their heap, in bytes: what they hold of their own climbs
    within it for a long time, as pages of it are touched for the first time.
    """

    samples: dict[tuple[str, int], list[Held]] = field(default_factory=dict)
    heaps: dict[tuple[str, int], list[tuple[float, float]]] = field(default_factory=dict)
    waits: Waits = field(default_factory=Waits)

    def look(self, processes: Mapping[str, int], at_s: float) -> None:
        waited_s: dict[tuple[str, int], float] = {}
        for name, pid in processes.items():
            found = held(pid, at_s)
            if found is not None:
                self.samples.setdefault((name, pid), []).append(found)
                waited_s |= {(name, thread): total_s for thread, total_s in found.waited_s.items()}
        self.waits.look(at_s, waited_s)


async def soak(length_s: float, seed: int, folder: Path, *, verbose: bool = False) -> Seen:
    """One soak of this length; logs, ledger and policies stay in the folder."""
    kills = max(1, round(length_s / 120))
    troubles = plan(seed, length_s, engines=ENGINES, agents=AGENTS, envoys=ENVOYS, kills=kills)
    seen = Seen(seed=seed, length_s=length_s, troubles=dict(Counter(one.what.value for one in troubles)))
    looks = _Looks()
    async with (
        Processes(log_dir=folder / "logs") as processes,
        Site(folder / "site", processes, engines=ENGINES, agents=AGENTS, envoys=ENVOYS, verbose=verbose) as site,
    ):
        stop = asyncio.Event()
        asking = asyncio.create_task(site.load(RATE_PER_S, seed, stop))
        async with asyncio.TaskGroup() as group:
            group.create_task(_watch(site, seen, looks, length_s))
            for trouble in troubles:
                await asyncio.sleep(max(0.0, trouble.at_s - site.now_s()))
                group.create_task(site.suffer(trouble))
        stop.set()
        await asking
        seen.findings += [*await _settled(site), *site.died()]
        _count(seen, site, looks, await site.attempts())
    _judge_growth(seen, looks)
    return seen


async def _watch(site: Site, seen: Seen, looks: _Looks, length_s: float) -> None:
    """Look at everything while trouble lasts."""
    while (at_s := site.now_s()) < length_s:
        processes = site.processes()
        looks.look(processes, at_s)
        for name, heap_bytes in (await site.heaps_bytes()).items():
            if name in processes:
                looks.heaps.setdefault((name, processes[name]), []).append((at_s, heap_bytes))
        engines, proxies = await site.ask("/v1/engines"), await site.ask("/v1/proxies")
        found = [] if engines is None else [*unexplained(engines["engines"])]
        found += [] if proxies is None else [*refused(proxies["proxies"])]
        seen.findings += [f"at {at_s:.0f} s: {one}" for one in found]
        await asyncio.sleep(LOOK_EACH_S)


async def _settled(site: Site) -> list[str]:
    """What is still wrong when trouble is over and there was time to come back."""
    give_up_at = time.monotonic() + LIMIT_S
    while True:
        wrong = await _wrong(site)
        if not wrong or time.monotonic() > give_up_at:
            return wrong
        await asyncio.sleep(LOOK_EACH_S)


async def _wrong(site: Site) -> list[str]:
    proxies, engines = await site.ask("/v1/proxies"), await site.ask("/v1/engines")
    policies = await site.ask("/v1/policies")
    if proxies is None or engines is None or policies is None:
        return ["the control plane does not answer"]
    known: list[dict[str, Any]] = engines["engines"]
    lines = (site.folder / "ledger.jsonl").read_text().splitlines()
    out = [
        f"{one['engine']} is still {one['health']}: {one['reason']}" for one in known if one["health"] != "HEALTHY"
    ]
    unread = [] if policies["state"] == "accepted" else [f"the policies are {policies['state']}"]
    return [*behind(proxies["proxies"], site.envoys), *incomplete(lines, known, site.kills), *out, *unread]


def _count(seen: Seen, site: Site, looks: _Looks, attempts: Mapping[str, Sequence[Any]]) -> None:
    """Say what became of the requests."""
    waits = looks.waits.waits
    around = Around(
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


def _judge_growth(seen: Seen, looks: _Looks) -> None:
    """Say of each part what it grew by, from that of its processes which lived longest."""
    longest: dict[str, tuple[str, int]] = {}
    for key, held_by_it in looks.samples.items():
        if key[0] not in longest or len(held_by_it) > len(looks.samples[longest[key[0]]]):
            longest[key[0]] = key
    for name, key in sorted(longest.items()):
        if name.startswith(ENGINES_OF_THE_BENCH):
            continue
        held_by_it = looks.samples[key]
        measured = {
            measure: [(one.at_s, float(getattr(one, measure))) for one in held_by_it] for measure in MEASURES
        }
        for measure, series in {**measured, "heap_bytes": looks.heaps.get(key, [])}.items():
            grown = growth(series)
            if grown is None:
                continue
            climb = climbs(series) if measure in COUNTS else ""
            seen.grown.append(Grown(process=name, measure=measure, growth=grown, word=grown.word, climb=climb))
            if climb:
                seen.findings.append(f"{measure} of {name} {climb}")
            elif measure not in COUNTS and grown.word is Word.GROWS:
                seen.findings.append(f"{measure} of {name} grow by {grown.low:.1f} to {grown.high:.1f} % an hour")
