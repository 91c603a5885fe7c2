"""The demonstration itself: set the stage, send the load, break things on time, watch, and judge."""

import asyncio
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.live import Live

from chaos.demo import screen, setting
from chaos.demo.plan import DEADLINE_S, ENGINES, MAX_TOKENS, Chapter, Plan, Span
from chaos.demo.score import Attempt, Score, Verdict, by_chapter, by_request, is_cut, score, verdict
from chaos.demo.stage import Side, Stage, attempts, books, stage
from chaos.load import LoadProfile, run_load
from chaos.outcomes import Outcome, summary
from chaos.processes import Processes

WINDOW_S = 3.0
"""What the live view calls now."""

LOOK_S = 0.5
RESTART_S = 0.4
"""How long a drained engine is gone before it is back; a real one takes longer, which costs capacity only."""

DRAIN_LIMIT_S = 3.0
NEWS = ("hung", "degraded")
"""Verdicts that nobody knows from a port or from /health."""


@dataclass(slots=True, kw_only=True)
class _Watch:
    """What one side has shown so far."""

    side: Side
    outcomes: list[Outcome] = field(default_factory=list)
    recent: deque[Outcome] = field(default_factory=deque)
    arrived: Mapping[str, int] = field(default_factory=dict)
    share: Mapping[str, float] = field(default_factory=dict)
    attempts: Sequence[Attempt] = ()

    def saw(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.recent.append(outcome)

    def line(self, now_s: float) -> screen.SideLine:
        while self.recent and self.recent[0].ended_at_s < now_s - WINDOW_S:
            self.recent.popleft()
        found = summary(self.recent)
        return screen.SideLine(
            goodput_percent=100.0 * (1.0 if found.goodput_ratio is None else found.goodput_ratio),
            p50_s=found.good_latency_p50_s,
            p99_s=found.good_latency_p99_s,
            lost=sum(not outcome.ok and not is_cut(outcome) for outcome in self.outcomes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scene:
    """What all parts of a demonstration share. ``began_s`` is the monotonic clock at time 0 of the plan."""

    plan: Plan
    stage: Stage
    watches: tuple[_Watch, ...]
    session: aiohttp.ClientSession
    console: Console
    live: bool
    began_s: float
    spoken: list[screen.Spoken] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of it, by side and chapter."""

    scores: Mapping[str, Mapping[Chapter, Score]]
    spoken: Sequence[screen.Spoken]
    verdict: Verdict


async def tell(plan: Plan, console: Console, *, live: bool) -> Result:
    """Run the whole demonstration; everything it started is gone when it returns or fails."""
    with tempfile.TemporaryDirectory(prefix="switchgear-demo-") as folder:
        async with Processes() as children, aiohttp.ClientSession() as session:
            console.print("starting 2 x 9 simulated engines, 9 agents, 6 real Envoys and the control plane ...")
            ready = await stage(children, session, Path(folder))
            scene = _Scene(
                plan=plan,
                stage=ready,
                watches=tuple(_Watch(side=side) for side in ready.sides),
                session=session,
                console=console,
                live=live,
                began_s=time.monotonic(),
            )
            await _play(scene)
    scores = {watch.side.name: _scores(watch, scene.began_s, plan) for watch in scene.watches}
    return Result(scores=scores, spoken=scene.spoken, verdict=verdict(scores[ready.switchgear.name], plan))


def _scores(watch: _Watch, began_s: float, plan: Plan) -> Mapping[Chapter, Score]:
    tried = by_request(watch.attempts)
    return {
        chapter: score(outcomes, tried) for chapter, outcomes in by_chapter(watch.outcomes, began_s, plan).items()
    }


async def _play(scene: _Scene) -> None:
    over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        loads = [group.create_task(_load(scene.plan, watch)) for watch in scene.watches]
        faults = group.create_task(_faults(scene))
        group.create_task(_show(scene, over))
        await asyncio.gather(*loads, faults)
        for watch in scene.watches:
            watch.attempts = await attempts(scene.session, watch.side.engines)
        over.set()


async def _load(plan: Plan, watch: _Watch) -> None:
    profile = LoadProfile(
        targets=watch.side.targets,
        rate_per_s=plan.rate_per_s,
        streaming_share=plan.streaming_share,
        max_tokens=dict.fromkeys(MAX_TOKENS, 1.0),
        deadline_s=DEADLINE_S,
        model=setting.MODEL,
        seed=plan.seed,
    )
    await run_load(profile, watch.saw, seconds=plan.length_s)


async def _faults(scene: _Scene) -> None:
    """Carry out the plan on both sides."""
    for span in scene.plan.spans:
        await _sleep_until(scene.began_s + span.start_s)
        if not scene.live:
            scene.console.print(f"{span.start_s:5.1f} s  {span.chapter}")
        match span.chapter:
            case Chapter.HANG:
                await _strike(scene, span, {"kind": "hang"})
            case Chapter.CRASH:
                await _strike(scene, span, {"kind": "crash"})
            case Chapter.DRAIN:
                await _roll(scene, span)
            case Chapter.CALM:
                pass


async def _strike(scene: _Scene, span: Span, fault: Mapping[str, Any]) -> None:
    """Break the chapter's engines on both sides, and restart them on time: a deadlocked kernel does not resume."""
    controls = [side.engines.controls[name] for side in scene.stage.sides for name in span.targets]
    await asyncio.gather(*(_put(scene.session, control, fault) for control in controls))
    await _sleep_until(scene.began_s + span.heal_s)
    await asyncio.gather(*(_put(scene.session, control, {"kind": "crash"}) for control in controls))
    await asyncio.gather(*(_heal(scene.session, control) for control in controls))


async def _roll(scene: _Scene, span: Span) -> None:
    """Restart every engine in turn, each after it was asked to drain: by its agent, or by itself without one."""
    step_s = (span.heal_s - span.start_s) / len(span.targets)
    async with asyncio.TaskGroup() as group:
        for index, name in enumerate(span.targets):
            await _sleep_until(scene.began_s + span.start_s + index * step_s)
            for side in scene.stage.sides:
                agent = side.engines.agents.get(name)
                group.create_task(_restart(scene.session, side.engines.controls[name], agent))


async def _restart(session: aiohttp.ClientSession, control: str, agent: str | None) -> None:
    if agent is None:
        await _put(session, control, {"kind": "drain"})
        limit_s = time.monotonic() + DRAIN_LIMIT_S
        while await _in_flight(session, control) and time.monotonic() < limit_s:
            await asyncio.sleep(0.05)
    else:
        # Comes back when every Envoy has acknowledged and nothing is in flight, as a preStop hook would.
        await _post(session, f"{agent}/drain", deadline=f"{DRAIN_LIMIT_S:g}s")
    await _put(session, control, {"kind": "crash"})
    await asyncio.sleep(RESTART_S)
    await _heal(session, control)
    if agent is not None:
        await _post(session, f"{agent}/undrain")


async def _put(session: aiohttp.ClientSession, control: str, fault: Mapping[str, Any]) -> None:
    async with session.put(f"{control}/fault", json=dict(fault)) as response:
        response.raise_for_status()


async def _post(session: aiohttp.ClientSession, url: str, **query: str) -> None:
    async with session.post(url, params=query) as response:
        response.raise_for_status()


async def _heal(session: aiohttp.ClientSession, control: str) -> None:
    async with session.delete(f"{control}/fault") as response:
        response.raise_for_status()


async def _in_flight(session: aiohttp.ClientSession, control: str) -> int:
    async with session.get(f"{control}/book") as response:
        response.raise_for_status()
        return int((await response.json())["in_flight"])


async def _show(scene: _Scene, over: asyncio.Event) -> None:
    """Look at both sides twice a second, and draw what is seen where there is a terminal."""
    with Live(console=scene.console, auto_refresh=False, transient=True) as display:
        while not over.is_set():
            for watch in scene.watches:
                found = await books(scene.session, watch.side.engines)
                arrived = {name: int(one["totals"]["arrived"]) for name, one in found.items()}
                watch.share = _shares(watch.arrived, arrived)
                watch.arrived = arrived
            engines = {one["engine"]: one for one in await _listed(scene, "engines")}
            _hear(scene, engines)
            if scene.live:
                display.update(screen.live(await _frame(scene, engines)), refresh=True)
            await _wait(over, LOOK_S)


def _hear(scene: _Scene, engines: Mapping[str, Mapping[str, Any]]) -> None:
    """Note each engine that newly counts as hung or dead, with the evidence."""
    for name, one in engines.items():
        verdict = str(one["verdict"])
        before = next((heard for heard in reversed(scene.spoken) if heard.engine == name), None)
        if verdict != ("ready" if before is None else before.verdict) and verdict in NEWS:
            scene.spoken.append(
                screen.Spoken(
                    time_s=time.monotonic() - scene.began_s,
                    engine=name,
                    verdict=verdict,
                    evidence=str(one["evidence"]),
                )
            )


async def _frame(scene: _Scene, engines: Mapping[str, Mapping[str, Any]]) -> screen.Frame:
    plan, began_s = scene.plan, scene.began_s
    ours, theirs = scene.watches
    proxies = await _listed(scene, "proxies")
    now_s = time.monotonic()
    span = plan.at(now_s - began_s)
    return screen.Frame(
        time_s=now_s - began_s,
        length_s=plan.length_s,
        chapter=span.chapter,
        doing="" if not span.targets else ("healed" if now_s - began_s > span.heal_s else ", ".join(span.targets)),
        engines=[
            screen.EngineLine(
                name=name,
                zone=name[0],
                verdict=engines.get(name, {}).get("verdict") or "?",
                health=engines.get(name, {}).get("health") or "?",
                share_percent=ours.share.get(name, 0.0),
                plain_share_percent=theirs.share.get(name, 0.0),
            )
            for name in ENGINES
        ],
        proxies={one["node"]: _worst(one["types"]) for one in proxies},
        reasons=[f"{name}: {one['reason']}" for name, one in engines.items() if one["health"] != "HEALTHY"],
        sides={watch.side.name: watch.line(now_s) for watch in scene.watches},
    )


async def _listed(scene: _Scene, what: str) -> list[dict[str, Any]]:
    async with scene.session.get(f"{scene.stage.admin_url}/v1/{what}") as response:
        response.raise_for_status()
        found: list[dict[str, Any]] = (await response.json())[what]
        return found


def _worst(types: list[dict[str, Any]]) -> str:
    order = ("NACK", "STALE", "SYNCED")
    return min((str(one["state"]) for one in types), key=order.index, default="STALE")


def _shares(before: Mapping[str, int], after: Mapping[str, int]) -> Mapping[str, float]:
    """Percent of the attempts between two looks at the books, by engine."""
    grown = {name: count - before.get(name, 0) for name, count in after.items()}
    total = sum(grown.values())
    return {name: 100.0 * count / total if total else 0.0 for name, count in grown.items()}


async def _sleep_until(time_s: float) -> None:
    await asyncio.sleep(max(0.0, time_s - time.monotonic()))


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
