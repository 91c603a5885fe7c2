"""Inject the plan's faults on both sides: engines hang, crash and restart."""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import aiohttp

from chaos.demo import demo_policies
from chaos.demo import terminal_view as screen
from chaos.demo.demo_context import DemoContext
from chaos.demo.demo_plan import Chapter, ChapterSpan
from chaos.demo.demo_verdict import TO_FALLBACK, WhyOutput, missing_phrases

_LONGEST_S: Final = 30.0

_AGAIN_S: Final = 0.2


async def run_why(scene: DemoContext, name: str, *expected: str, until_s: float = 0.0) -> None:
    """Record and show the output of ``switchgear why NAME``; it must contain the words ``expected``.

    The state may change while the command runs, especially on a busy machine. So it is repeated until ``until_s``;
    the last output counts.
    """
    while True:
        answer = WhyOutput(time_s=scene.now_s, name=name, text=await _why(scene, name), expected=expected)
        if not missing_phrases(answer) or scene.now_s >= until_s:
            break
        await asyncio.sleep(_AGAIN_S)
    scene.answers.append(answer)
    scene.console.print(screen.why_text(answer))


async def _why(scene: DemoContext, name: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "xds_server", "why", name, "--admin", scene.stage.admin_url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "COLUMNS": str(scene.console.width - screen.QUOTE_COLUMNS)},
    )
    try:
        async with asyncio.timeout(_LONGEST_S):
            said, _ = await process.communicate()
    except TimeoutError:
        return f"no answer within {_LONGEST_S:g} s"
    finally:
        if process.returncode is None:
            process.kill()
    return said.decode(errors="replace").rstrip()


RESTART_S: Final = 0.4
"""Restart time of a drained engine; a real one takes longer, which only costs capacity."""

DRAIN_LIMIT_S: Final = 3.0

DETECTION_LIMIT_S: Final = 30.0
"""Longest wait for a chapter's effect; after it the demo continues and the verdict reports the gap."""

_POLL_S: Final = 0.1


async def inject_faults(scene: DemoContext) -> None:
    """Inject the plan's faults on both sides; return after the last chapter."""
    for span in scene.plan.spans:
        await _sleep_until(scene, span.start_s)
        scene.print_line(span.chapter)
        await _sleep_until(scene, span.strike_s)
        match span.chapter:
            case Chapter.HANG:
                async with asyncio.TaskGroup() as group:
                    group.create_task(_strike(scene, span, {"kind": "hang"}))
                    group.create_task(_ask_of_hung(scene, span))
            case Chapter.CRASH:
                await _strike(scene, span, {"kind": "crash"})
            case Chapter.DRAIN:
                await _roll(scene, span)
                scene.healed.add(span.chapter)
            case Chapter.OVERLOAD:
                await _overload(scene, span)
            case Chapter.CALM:
                pass


async def _strike(scene: DemoContext, span: ChapterSpan, fault: Mapping[str, Any]) -> None:
    """Fault the chapter's engines on both sides, and restart them on time: a deadlocked kernel does not resume."""
    await _break(scene, span, fault)
    await _sleep_until(scene, span.heal_s)
    await _restart_all(scene, span)


async def _ask_of_hung(scene: DemoContext, span: ChapterSpan) -> None:
    """Run ``why`` for the engine once its agent reports it hung, at the latest when it restarts."""
    name = span.targets[0]
    await _seen(lambda: scene.verdicts.get(name) == "hung" or scene.now_s > span.heal_s)
    await run_why(scene, name, f"{demo_policies.POOL}/{name}", "hung", "no token for", until_s=span.heal_s)


async def _overload(scene: DemoContext, span: ChapterSpan) -> None:
    """Cut capacity below the load until the fallback serves; then heal and wait for level 0."""
    await _break(scene, span, {"kind": "crash"})
    await _seen(lambda: scene.level >= TO_FALLBACK and scene.ours.disclosed > 0)
    # The level fluctuates with the load; do not heal before `why` has answered.
    until_s = scene.now_s + DETECTION_LIMIT_S
    expected = (f"pool {demo_policies.POOL}", "degradation level", "go to the fallback")
    await run_why(scene, demo_policies.POOL, *expected, until_s=until_s)
    await _sleep_until(scene, span.heal_s)
    await _restart_all(scene, span)
    await _seen(lambda: scene.level == 0)
    await _sleep_until(scene, span.end_s)


async def _break(scene: DemoContext, span: ChapterSpan, fault: Mapping[str, Any]) -> None:
    controls = [side.engines.controls[name] for side in scene.stage.sides for name in span.targets]
    await asyncio.gather(*(_put(scene.session, control, fault) for control in controls))


async def _restart_all(scene: DemoContext, span: ChapterSpan) -> None:
    controls = [side.engines.controls[name] for side in scene.stage.sides for name in span.targets]
    await asyncio.gather(*(_put(scene.session, control, {"kind": "crash"}) for control in controls))
    await asyncio.gather(*(_heal(scene.session, control) for control in controls))
    scene.healed.add(span.chapter)


async def _roll(scene: DemoContext, span: ChapterSpan) -> None:
    """Restart every engine in turn after draining it through its agent, or directly without one."""
    step_s = (span.heal_s - span.strike_s) / len(span.targets)
    async with asyncio.TaskGroup() as group:
        for index, name in enumerate(span.targets):
            await _sleep_until(scene, span.strike_s + index * step_s)
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
        # Returns once every Envoy has ACKed and nothing is in flight, like a preStop hook.
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


async def _sleep_until(scene: DemoContext, time_s: float) -> None:
    await asyncio.sleep(max(0.0, time_s - scene.now_s))


async def _seen(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds, or for the longest wait."""
    limit_s = time.monotonic() + DETECTION_LIMIT_S
    while not condition() and time.monotonic() < limit_s:
        await asyncio.sleep(_POLL_S)
