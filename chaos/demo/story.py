"""The demonstration itself: set the stage, send the load, break things on time, watch, and judge."""

import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from rich.console import Console

from chaos.demo import screen, setting
from chaos.demo.faults import carry_out
from chaos.demo.plan import DEADLINE_S, LONGEST_SERVICE_S, MAX_TOKENS, Chapter, Plan
from chaos.demo.scene import Scene, Watch
from chaos.demo.score import Score, by_chapter, by_request, score
from chaos.demo.show import show
from chaos.demo.stage import attempts, stage
from chaos.demo.verdict import Answer, LadderStep, Verdict, verdict
from chaos.load.open_loop import LoadProfile, run_load
from chaos.processes import Processes


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of it, by side and chapter; ``ladder`` and ``answers`` are Switchgear's."""

    scores: Mapping[str, Mapping[Chapter, Score]]
    spoken: Sequence[screen.Spoken]
    ladder: Sequence[LadderStep]
    answers: Sequence[Answer]
    verdict: Verdict


async def tell(plan: Plan, console: Console, *, live: bool) -> Result:
    """Run the whole demonstration; everything it started is gone when it returns or fails."""
    with tempfile.TemporaryDirectory(prefix="switchgear-demo-") as folder:
        async with Processes() as children, aiohttp.ClientSession() as session:
            console.print(
                "starting 2 x 9 simulated engines, 9 agents, 3 engines of a smaller model, 6 real Envoys and the "
                "control plane ..."
            )
            ready = await stage(children, session, Path(folder))
            scene = Scene(
                plan=plan,
                stage=ready,
                ours=Watch(side=ready.switchgear),
                theirs=Watch(side=ready.plain),
                session=session,
                console=console,
                live=live,
                began_s=time.monotonic(),
            )
            await _play(scene)
    scores = {watch.side.name: _scores(watch, scene) for watch in scene.watches}
    return Result(
        scores=scores,
        spoken=scene.spoken,
        ladder=scene.steps,
        answers=scene.answers,
        verdict=verdict(scores[ready.switchgear.name], scene.steps, scene.answers, plan),
    )


def _scores(watch: Watch, scene: Scene) -> Mapping[Chapter, Score]:
    tried = by_request(watch.attempts)
    chapters = by_chapter(watch.outcomes, scene.began_s, scene.plan)
    return {chapter: score(outcomes, tried) for chapter, outcomes in chapters.items()}


async def _play(scene: Scene) -> None:
    shown, over = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        loads = [group.create_task(_load(scene, watch, shown)) for watch in scene.watches]
        group.create_task(show(scene, over))
        await carry_out(scene)
        # A little longer, for what may still go wrong.
        await asyncio.sleep(LONGEST_SERVICE_S)
        shown.set()
        await asyncio.gather(*loads)
        for watch in scene.watches:
            watch.attempts = await attempts(scene.session, watch.side)
        over.set()


async def _load(scene: Scene, watch: Watch, stop: asyncio.Event) -> None:
    """The plan's requests for one side until ``stop``, and those that come on top from some chapter on."""
    plan = scene.plan

    async def send(rate_per_s: float, seed: int, from_s: float) -> None:
        profile = LoadProfile(
            targets=watch.side.targets,
            rate_per_s=rate_per_s,
            streaming_share=plan.streaming_share,
            max_tokens=dict.fromkeys(MAX_TOKENS, 1.0),
            deadline_s=DEADLINE_S,
            model=setting.MODEL,
            seed=seed,
        )
        await asyncio.sleep(max(0.0, from_s - scene.now_s))
        await run_load(profile, watch.saw, stop=stop)

    async with asyncio.TaskGroup() as group:
        group.create_task(send(plan.rate_per_s, plan.seed, 0.0))
        for number, span in enumerate(plan.spans, start=1):
            if span.more_per_s:
                # Its own seed makes its requests others than the first ones, with ids of their own.
                group.create_task(send(span.more_per_s, plan.seed + number * 1_000_000, span.start_s))
