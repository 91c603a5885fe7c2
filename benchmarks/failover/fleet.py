"""The simulated engines of one experiment, in a few processes, and their control ports."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import aiohttp

from benchmarks.failover.setting import PREFILL_S, TOKEN_S, EngineKind, Setting
from chaos.fake_engine import Fault
from chaos.fake_engine.book import KEPT_CALLS
from chaos.fake_engine.faults import fault_object
from chaos.processes import Child, Processes

MODEL = "bench"
STREAM_INTERVAL = 8
"""Tokens per event of a stream: at one each, writing them would keep the simulation busier than the experiment."""

START_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Running engines by number. ``names`` are theirs, ``controls`` where each takes orders."""

    names: tuple[str, ...]
    ports: tuple[int, ...]
    controls: tuple[str, ...]
    children: tuple[Child, ...]


async def start_fleet(children: Processes, setting: Setting) -> Fleet:
    """Start the engines, those of one process next to each other; engines of unequal kinds never share one."""
    groups = _groups(setting)
    started = await asyncio.gather(
        *(_start(children, place, numbers, setting) for place, numbers in enumerate(groups))
    )
    listed: dict[int, dict[str, Any]] = {}
    for child, numbers in zip(started, groups, strict=True):
        listed.update(zip(numbers, child.ready["engines"], strict=True))
    engines = [listed[number] for number in range(setting.engines)]
    return Fleet(
        names=tuple(str(one["name"]) for one in engines),
        ports=tuple(int(one["port"]) for one in engines),
        controls=tuple(str(one["control"]) for one in engines),
        children=tuple(started),
    )


async def set_fault(session: aiohttp.ClientSession, fleet: Fleet, engine: int, fault: Fault | None) -> None:
    """Break an engine, or heal it; on return it is so."""
    url = f"{fleet.controls[engine]}/fault"
    if fault is None:
        async with session.delete(url) as answer:
            answer.raise_for_status()
    else:
        async with session.put(url, json=fault_object(fault)) as answer:
            answer.raise_for_status()


async def books(session: aiohttp.ClientSession, fleet: Fleet) -> Sequence[Any]:
    """What each engine's book says, by number, with all calls it kept."""

    async def book(control: str) -> Any:
        async with session.get(f"{control}/book", params={"calls": KEPT_CALLS}) as answer:
            answer.raise_for_status()
            return await answer.json()

    return await asyncio.gather(*(book(control) for control in fleet.controls))


def _groups(setting: Setting) -> list[list[int]]:
    per_process = -(-setting.engines // setting.engine_processes)
    by_kind = sorted(range(setting.engines), key=lambda one: setting.kinds.index(setting.kind(one)))
    groups = []
    for _, same in groupby(by_kind, key=setting.kind):
        numbers = list(same)
        groups += [numbers[at : at + per_process] for at in range(0, len(numbers), per_process)]
    return groups


async def _start(children: Processes, place: int, numbers: Sequence[int], setting: Setting) -> Child:
    kind: EngineKind = setting.kind(numbers[0])
    command = [
        *(sys.executable, "-m", "chaos.fake_engine", "--count", str(len(numbers))),
        *("--name-prefix", f"{chr(ord('e') + place)}", "--model", MODEL, "--slots", str(kind.slots)),
        *("--prefill-s", str(PREFILL_S * kind.slowness), "--token-s", str(TOKEN_S * kind.slowness)),
        *("--stream-interval", str(STREAM_INTERVAL), "--seed", str(1000 * setting.seed + numbers[0])),
    ]
    if setting.gate:
        command.append("--first-token-gate")
    return await children.start(f"engines-{place}", command, ready_within_s=START_LIMIT_S)
