"""Look at both sides twice a second: take down what is news, and draw what is seen where there is a terminal."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from rich.live import Live

from chaos.demo import screen, setting
from chaos.demo.plan import ENGINES
from chaos.demo.scene import Scene
from chaos.demo.stage import books
from chaos.demo.verdict import LadderStep

LOOK_S: Final = 0.5
NEWS: Final = ("hung", "degraded")
"""Verdicts that nobody knows from a port or from /health."""


async def show(scene: Scene, over: asyncio.Event) -> None:
    """Go on until ``over``."""
    newest = 0
    with Live(console=scene.console, auto_refresh=False, transient=True) as display:
        while not over.is_set():
            for watch in scene.watches:
                found = await books(scene.session, watch.side)
                arrived = {name: int(one["totals"]["arrived"]) for name, one in found.items()}
                watch.share = _shares(watch.arrived, arrived)
                watch.arrived = arrived
            newest = await _climb(scene, newest)
            engines = {one["engine"]: one for one in await scene.listed("engines")}
            _hear(scene, engines)
            if scene.live:
                display.update(screen.live(await _frame(scene, engines)), refresh=True)
            await _wait(over, LOOK_S)
        await _climb(scene, newest)


async def _climb(scene: Scene, newest: int) -> int:
    """Take down what the ledger says of the pool's ladder since event ``newest``; the newest event now."""
    for event in await scene.listed("events", name=f"pool:{setting.POOL}", since=str(newest)):
        newest = max(newest, event["number"])
        if event["kind"] == "ladder":
            before, after = (int(event[key].removeprefix("level ")) for key in ("before", "after"))
            seen = sum((one.before, one.after) == (before, after) for one in scene.steps)
            step = LadderStep(
                time_s=scene.now_s - event["age_s"],
                before=before,
                after=after,
                reason=event["evidence"],
                unseen=max(0, event["times"] - 1 - seen),
            )
            scene.steps.append(step)
            scene.say(f"ladder: level {before} -> {after}", time_s=step.time_s)
    return newest


def _hear(scene: Scene, engines: Mapping[str, Mapping[str, Any]]) -> None:
    """Note each engine that newly counts as hung or degraded, with the evidence."""
    for name, one in engines.items():
        verdict = str(one["verdict"])
        before = next((heard for heard in reversed(scene.spoken) if heard.engine == name), None)
        if verdict != ("ready" if before is None else before.verdict) and verdict in NEWS:
            scene.spoken.append(
                screen.Spoken(time_s=scene.now_s, engine=name, verdict=verdict, evidence=str(one["evidence"]))
            )
        scene.verdicts[name] = verdict


async def _frame(scene: Scene, engines: Mapping[str, Mapping[str, Any]]) -> screen.Frame:
    plan = scene.plan
    proxies = await scene.listed("proxies")
    pool = next(one for one in await scene.listed("pools") if one["pool"] == setting.POOL)
    now_s = scene.now_s
    span = plan.at(now_s)
    doing = ""
    if span.targets and now_s >= span.strike_s:
        doing = "healed" if span.chapter in scene.healed else ", ".join(span.targets)
    return screen.Frame(
        time_s=now_s,
        length_s=max(now_s, plan.length_s),
        chapter=span.chapter,
        doing=doing,
        engines=[
            screen.EngineLine(
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
        ladder=screen.LadderLine(
            level=pool["level"],
            reason=pool["level_reason"],
            asked_percent=None if pool["pressure"] is None else 100.0 * pool["pressure"],
            fallback_percent=scene.ours.fallback_percent(scene.began_s + now_s),
            shed_per_s=sum(pool["shed_per_s"].values()),
        ),
        sides={watch.side.name: watch.line(scene.began_s + now_s) for watch in scene.watches},
    )


def _worst(types: list[dict[str, Any]]) -> str:
    order = ("NACK", "STALE", "SYNCED")
    return min((str(one["state"]) for one in types), key=order.index, default="STALE")


def _shares(before: Mapping[str, int], after: Mapping[str, int]) -> Mapping[str, float]:
    """Percent of the attempts between two looks at the books, by engine."""
    grown = {name: count - before.get(name, 0) for name, count in after.items()}
    total = sum(grown.values())
    return {name: 100.0 * count / total if total else 0.0 for name, count in grown.items()}


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
