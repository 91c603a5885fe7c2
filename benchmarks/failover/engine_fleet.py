"""The simulated engines of one experiment, in a few processes, and their control ports."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from benchmarks.failover.experiment_setting import PREFILL_S, TOKEN_S, EngineKind, ExperimentSetting
from chaos.fake_engine import EngineFault
from chaos.lab import engine_processes
from chaos.lab.process_slot import START_LIMIT_S
from chaos.processes import ChildProcess, ChildProcesses, free_ports

MODEL = "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFleet:
    """Running engines by number. ``names`` are theirs, ``controls`` where each takes orders.

    ``hosts`` differ, and all ``ports`` are one, only where a contestant needs it.
    """

    names: tuple[str, ...]
    hosts: tuple[str, ...]
    ports: tuple[int, ...]
    controls: tuple[str, ...]
    children: tuple[ChildProcess, ...]

    @property
    def addresses(self) -> tuple[str, ...]:
        """HOST:PORT of each."""
        return tuple(f"{host}:{port}" for host, port in zip(self.hosts, self.ports, strict=True))


async def start_fleet(
    children: ChildProcesses, setting: ExperimentSetting, *, as_pods: bool = False
) -> EngineFleet:
    """Start the engines, those of one process next to each other; engines of unequal kinds never share one.

    ``as_pods``: each has an address of its own, and all have the same port.
    """
    groups, port = _groups(setting), free_ports(1)[0] if as_pods else 0
    started = await asyncio.gather(
        *(_start(children, place, numbers, setting, port) for place, numbers in enumerate(groups))
    )
    listed: dict[int, dict[str, Any]] = {}
    for child, numbers in zip(started, groups, strict=True):
        listed.update(zip(numbers, child.ready["engines"], strict=True))
    ordered = [listed[number] for number in range(setting.engines)]
    return EngineFleet(
        names=tuple(str(one["name"]) for one in ordered),
        hosts=tuple(str(urlsplit(one["url"]).hostname) for one in ordered),
        ports=tuple(int(one["port"]) for one in ordered),
        controls=tuple(str(one["control"]) for one in ordered),
        children=tuple(started),
    )


async def set_fault(
    session: aiohttp.ClientSession, fleet: EngineFleet, engine: int, fault: EngineFault | None
) -> None:
    """Break an engine, or heal it; on return it is so."""
    await engine_processes.set_engine_fault(session, fleet.controls[engine], fault)


async def call_records(session: aiohttp.ClientSession, fleet: EngineFleet) -> Sequence[Any]:
    """What each engine's book says, by number, with all calls it kept."""
    return list(await asyncio.gather(*(engine_processes.call_log(session, control) for control in fleet.controls)))


def _groups(setting: ExperimentSetting) -> list[list[int]]:
    per_process = -(-setting.engines // setting.engine_processes)
    by_kind = sorted(range(setting.engines), key=lambda one: setting.kinds.index(setting.kind(one)))
    groups = []
    for _, same in groupby(by_kind, key=setting.kind):
        numbers = list(same)
        groups += [numbers[at : at + per_process] for at in range(0, len(numbers), per_process)]
    return groups


async def _start(
    children: ChildProcesses, place: int, numbers: Sequence[int], setting: ExperimentSetting, port: int
) -> ChildProcess:
    """``port``: of all engines, which then have addresses of their own; 0 otherwise."""
    kind: EngineKind = setting.kind(numbers[0])
    sort = engine_processes.EngineProfile(
        model=MODEL,
        slots=kind.slots,
        prefill_s=PREFILL_S * kind.slowness,
        token_s=TOKEN_S * kind.slowness,
        gate=setting.gate,
    )
    argv = engine_processes.fake_engine_command(
        sort, count=len(numbers), prefix=chr(ord("e") + place), seed=1000 * setting.seed + numbers[0]
    )
    if port:
        argv += ["--host", f"127.1.{place}.1", "--port", str(port), "--own-addresses"]
    return await children.start(f"engines-{place}", argv, ready_within_s=START_LIMIT_S)
