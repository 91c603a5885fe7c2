"""Run the demo: start the lab, send the load, inject faults on time, observe and judge."""

import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
from rich.console import Console
from rich.live import Live

from chaos.demo import demo_policies, terminal_view
from chaos.demo.demo_context import DemoContext, SideObserver
from chaos.demo.demo_lab import engine_call_logs, scored_attempts, start_demo_lab
from chaos.demo.demo_plan import DEADLINE_S, ENGINES, LONGEST_SERVICE_S, MAX_TOKENS, Chapter, DemoPlan
from chaos.demo.demo_verdict import DegradationStep, DemoVerdict, WhyOutput, demo_verdict
from chaos.demo.fault_schedule import inject_faults
from chaos.demo.scoring import Score, by_chapter, by_request, score
from chaos.load.open_loop import LoadProfile, run_load
from chaos.processes import ChildProcesses

OBSERVE_EVERY_S: Final = 0.5
NEWS: Final = ("hung", "degraded")
"""Verdicts that neither a port nor /health reveals."""


async def observe_sides(scene: DemoContext, over: asyncio.Event) -> None:
    """Observe both sides until ``over``."""
    newest = 0
    with Live(console=scene.console, auto_refresh=False, transient=True) as display:
        while not over.is_set():
            for watch in scene.observers:
                found = await engine_call_logs(scene.session, watch.side)
                arrived = {name: int(one["totals"]["arrived"]) for name, one in found.items()}
                watch.share = _shares(watch.arrived, arrived)
                watch.arrived = arrived
            newest = await _climb(scene, newest)
            engines = {one["engine"]: one for one in await scene.fetch_list("engines")}
            _hear(scene, engines)
            if scene.live:
                display.update(terminal_view.live_view(await _frame(scene, engines)), refresh=True)
            await _wait(over, OBSERVE_EVERY_S)
        await _climb(scene, newest)


async def _climb(scene: DemoContext, newest: int) -> int:
    """Record the pool's degradation levels since event ``newest``; return the newest event."""
    for event in await scene.fetch_list("events", name=f"pool:{demo_policies.POOL}", since=str(newest)):
        newest = max(newest, event["number"])
        if event["kind"] == "ladder":
            before, after = (int(event[key].removeprefix("level ")) for key in ("before", "after"))
            seen = sum((one.before, one.after) == (before, after) for one in scene.steps)
            step = DegradationStep(
                time_s=scene.now_s - event["age_s"],
                before=before,
                after=after,
                reason=event["evidence"],
                unseen=max(0, event["times"] - 1 - seen),
            )
            scene.steps.append(step)
            scene.print_line(f"degradation: level {before} -> {after}", time_s=step.time_s)
    return newest


def _hear(scene: DemoContext, engines: Mapping[str, Mapping[str, Any]]) -> None:
    """Record each newly hung or degraded engine, with the evidence."""
    for name, one in engines.items():
        verdict = str(one["verdict"])
        before = next((heard for heard in reversed(scene.spoken) if heard.engine == name), None)
        if verdict != ("ready" if before is None else before.verdict) and verdict in NEWS:
            scene.spoken.append(
                terminal_view.AgentReport(
                    time_s=scene.now_s, engine=name, verdict=verdict, evidence=str(one["evidence"])
                )
            )
        scene.verdicts[name] = verdict


async def _frame(scene: DemoContext, engines: Mapping[str, Mapping[str, Any]]) -> terminal_view.ScreenFrame:
    plan = scene.plan
    proxies = await scene.fetch_list("proxies")
    pool = next(one for one in await scene.fetch_list("pools") if one["pool"] == demo_policies.POOL)
    now_s = scene.now_s
    span = plan.at(now_s)
    doing = ""
    if span.targets and now_s >= span.strike_s:
        doing = "healed" if span.chapter in scene.healed else ", ".join(span.targets)
    return terminal_view.ScreenFrame(
        time_s=now_s,
        length_s=max(now_s, plan.length_s),
        chapter=span.chapter,
        doing=doing,
        engines=[
            terminal_view.EngineLine(
                name=name,
                zone=name[0],
                verdict=engines.get(name, {}).get("verdict") or "?",
                health=engines.get(name, {}).get("health") or "?",
                share_percent=scene.ours.share.get(name, 0.0),
                plain_share_percent=scene.theirs.share.get(name, 0.0),
            )
            for name in ENGINES
        ],
        proxies={one["node"]: _worst(one["types"]) for one in proxies},
        reasons=[f"{name}: {one['reason']}" for name, one in engines.items() if one["health"] != "HEALTHY"],
        ladder=terminal_view.DegradationLine(
            level=pool["level"],
            reason=pool["level_reason"],
            asked_percent=None if pool["pressure"] is None else 100.0 * pool["pressure"],
            fallback_percent=scene.ours.fallback_percent(scene.began_s + now_s),
            shed_per_s=sum(pool["shed_per_s"].values()),
        ),
        sides={watch.side.name: watch.status_line(scene.began_s + now_s) for watch in scene.observers},
    )


def _worst(types: list[dict[str, Any]]) -> str:
    order = ("NACK", "STALE", "SYNCED")
    return min((str(one["state"]) for one in types), key=order.index, default="STALE")


def _shares(before: Mapping[str, int], after: Mapping[str, int]) -> Mapping[str, float]:
    """Percent of the attempts between two samples, by engine."""
    grown = {name: count - before.get(name, 0) for name, count in after.items()}
    total = sum(grown.values())
    return {name: 100.0 * count / total if total else 0.0 for name, count in grown.items()}


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """Results by side and chapter; ``ladder`` and ``answers`` are Switchgear's."""

    scores: Mapping[str, Mapping[Chapter, Score]]
    spoken: Sequence[terminal_view.AgentReport]
    ladder: Sequence[DegradationStep]
    answers: Sequence[WhyOutput]
    verdict: DemoVerdict


async def run_demo(plan: DemoPlan, console: Console, *, live: bool) -> DemoResult:
    """Run the demo; all its processes have ended when it returns or fails."""
    with tempfile.TemporaryDirectory(prefix="switchgear-demo-") as folder:
        async with ChildProcesses() as children, aiohttp.ClientSession() as session:
            console.print(
                "starting 2 x 9 simulated engines, 9 agents, 3 engines of a smaller model, 6 real Envoys and the "
                "control plane ..."
            )
            ready = await start_demo_lab(children, session, Path(folder))
            scene = DemoContext(
                plan=plan,
                stage=ready,
                ours=SideObserver(side=ready.switchgear),
                theirs=SideObserver(side=ready.plain),
                session=session,
                console=console,
                live=live,
                began_s=time.monotonic(),
            )
            await _play(scene)
    scores = {watch.side.name: _scores(watch, scene) for watch in scene.observers}
    return DemoResult(
        scores=scores,
        spoken=scene.spoken,
        ladder=scene.steps,
        answers=scene.answers,
        verdict=demo_verdict(scores[ready.switchgear.name], scene.steps, scene.answers, plan),
    )


def _scores(watch: SideObserver, scene: DemoContext) -> Mapping[Chapter, Score]:
    tried = by_request(watch.attempts)
    chapters = by_chapter(watch.outcomes, scene.began_s, scene.plan)
    return {chapter: score(outcomes, tried) for chapter, outcomes in chapters.items()}


async def _play(scene: DemoContext) -> None:
    shown, over = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        loads = [group.create_task(_load(scene, watch, shown)) for watch in scene.observers]
        group.create_task(observe_sides(scene, over))
        await inject_faults(scene)
        # Observe a little longer for late failures.
        await asyncio.sleep(LONGEST_SERVICE_S)
        shown.set()
        await asyncio.gather(*loads)
        for watch in scene.observers:
            watch.attempts = await scored_attempts(scene.session, watch.side)
        over.set()


async def _load(scene: DemoContext, watch: SideObserver, stop: asyncio.Event) -> None:
    """Send the plan's requests to one side until ``stop``, with the extra load of later chapters."""
    plan = scene.plan

    async def send(rate_per_s: float, seed: int, from_s: float) -> None:
        profile = LoadProfile(
            targets=watch.side.targets,
            rate_per_s=rate_per_s,
            streaming_share=plan.streaming_share,
            max_tokens=dict.fromkeys(MAX_TOKENS, 1.0),
            deadline_s=DEADLINE_S,
            model=demo_policies.MODEL,
            seed=seed,
        )
        await asyncio.sleep(max(0.0, from_s - scene.now_s))
        await run_load(profile, watch.record, stop=stop)

    async with asyncio.TaskGroup() as group:
        group.create_task(send(plan.rate_per_s, plan.seed, 0.0))
        for number, span in enumerate(plan.spans, start=1):
            if span.more_per_s:
                # A separate seed gives the extra requests their own ids.
                group.create_task(send(span.more_per_s, plan.seed + number * 1_000_000, span.start_s))
