"""``python -m benchmarks soak [--minutes 15] [--seed 1]``: 0 when every invariant held, 1 when not."""

import argparse
import asyncio
import json
import logging
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from benchmarks.site import LIMIT_S
from benchmarks.soak.growth import Growth, Sample, growth
from benchmarks.soak.invariants import behind, incomplete, unexplained
from benchmarks.soak.plan import plan
from benchmarks.soak.site import Site
from chaos.history.outcomes import Reason
from chaos.processes import Processes

ENGINES: Final = 30
AGENTS: Final = 3
ENVOYS: Final = 3
RATE_PER_S: Final = 30.0
LOOK_EACH_S: Final = 1.0
MOST_PERCENT_PER_H: Final = 1.0
RESULTS: Final = Path(__file__).parents[1] / "results" / "soak.json"


@dataclass(slots=True, kw_only=True)
class Seen:
    """What a soak saw; ``findings`` are what did not hold."""

    seed: int
    length_s: float
    troubles: dict[str, int]
    requests: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    growth: Growth | None = None


async def soak(length_s: float, seed: int, folder: Path) -> Seen:
    """One soak of this length."""
    troubles = plan(seed, length_s, engines=ENGINES, agents=AGENTS, kills=max(1, round(length_s / 120)))
    seen = Seen(seed=seed, length_s=length_s, troubles=dict(Counter(one.what.value for one in troubles)))
    samples: dict[int, list[Sample]] = {}
    async with (
        Processes() as processes,
        Site(folder, processes, engines=ENGINES, agents=AGENTS, envoys=ENVOYS) as site,
    ):
        stop, began_s = asyncio.Event(), time.monotonic()
        asking = asyncio.create_task(site.load(RATE_PER_S, seed, stop))
        async with asyncio.TaskGroup() as group:
            group.create_task(_look(site, seen, samples, began_s, length_s))
            for trouble in troubles:
                await asyncio.sleep(max(0.0, began_s + trouble.at_s - time.monotonic()))
                group.create_task(site.suffer(trouble))
        stop.set()
        await asking
        seen.findings += await _settled(site)
        seen.requests = len(site.outcomes)
        seen.lost = dict(Counter(one.reason.value for one in site.outcomes if one.reason is not Reason.OK))
    if seen.lost:
        seen.findings.append(f"{sum(seen.lost.values())} of {seen.requests} requests were lost: {seen.lost}")
    seen.growth = growth(max(samples.values(), key=len)) if samples else None
    if seen.growth is not None and seen.growth.judged and seen.growth.memory_percent_per_h > MOST_PERCENT_PER_H:
        seen.findings.append(f"memory grows by {seen.growth.memory_percent_per_h:.1f} % an hour")
    return seen


async def _look(site: Site, seen: Seen, samples: dict[int, list[Sample]], began_s: float, length_s: float) -> None:
    """Look at the control plane while trouble lasts."""
    while (at_s := time.monotonic() - began_s) < length_s:
        if (sampled := site.sample(at_s)) is not None:
            samples.setdefault(sampled[0], []).append(sampled[1])
        answer = await site.ask("/v1/engines")
        if answer is not None:
            seen.findings += unexplained(answer["engines"])
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
    if proxies is None or engines is None:
        return ["the control plane does not answer"]
    known: list[dict[str, Any]] = engines["engines"]
    lines = (site.folder / "ledger.jsonl").read_text().splitlines()
    out = [
        f"{one['engine']} is still {one['health']}: {one['reason']}" for one in known if one["health"] != "HEALTHY"
    ]
    return [*behind(proxies["proxies"], site.envoys), *incomplete(lines, known, site.kills), *out]


def main(argv: Sequence[str]) -> int:
    """Soak, print what was seen and keep it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks soak")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args(argv)
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    # Engines that are broken on purpose lose their callers, which aiohttp tells of at length.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="switchgear-soak-") as folder:
        seen = asyncio.run(soak(asked.minutes * 60, asked.seed, Path(folder)))
    console = Console()
    console.print(f"{seen.length_s:g} s with seed {seen.seed}: {seen.requests} requests; {seen.troubles}")
    if seen.growth is not None:
        found = seen.growth
        console.print(
            f"control plane: {found.memory_bytes / 2**20:.0f} MiB, {found.memory_percent_per_h:+.1f} % an hour; "
            f"{found.descriptors:.0f} descriptors, {found.descriptors_per_h:+.1f} an hour; "
            f"over {found.over_s:.0f} s" + ("" if found.judged else ", which is too short to mean anything")
        )
    for finding in seen.findings[:20]:
        console.print(f"  {finding}", style="red", markup=False)
    asked.results.write_text(json.dumps(asdict(seen), indent=2) + "\n")
    return 1 if seen.findings else 0
