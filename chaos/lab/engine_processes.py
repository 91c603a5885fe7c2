"""The lab's engine processes: simulated engines, which may share processes, or real vLLM."""

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from chaos.fake_engine.call_log import KEPT_CALLS
from chaos.fake_engine.engine_faults import EngineFault, engine_fault_object
from chaos.faults.actions import ProcessRole
from chaos.lab.process_slot import START_LIMIT_S, ProcessSlot
from chaos.processes import ChildProcess, ChildProcesses, free_ports
from chaos.real_vllm import vllm_replica
from chaos.real_vllm.tiny_model import write_model
from chaos.scenario.experiment_plan import Experiment
from chaos.testbed.blueprint import PoolBlueprint
from chaos.testbed.service_costs import kv_transfer_token_s, longest_context_tokens, token_costs_s
from policies.remote_prefill import Stage

STREAM_INTERVAL: Final = 8
"""Tokens per stream event: with 1, writing events would dominate the simulation's CPU time."""

SHARED_PROCESSES: Final = 2
"""Number of processes shared by engines without their own."""


class EngineStartError(RuntimeError):
    """The requested engines cannot be started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """Settings of the simulated engines of one process; times include their slowness."""

    model: str
    slots: int
    prefill_s: float = 0.0
    prefill_token_s: float = 0.0
    token_s: float
    gate: bool = False
    max_model_len: int = 4096
    stage: Stage | None = None
    prefix_cache: bool = False
    kv_transfer_token_s: float = 0.0
    adapter: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningEngines:
    """Running engines.

    ``controls`` are their control URLs, ``posts`` the process slots of engines with their own process, ``shared``
    the other processes.
    """

    ports: Mapping[str, int] = field(default_factory=dict)
    controls: Mapping[str, str] = field(default_factory=dict)
    posts: Mapping[str, ProcessSlot] = field(default_factory=dict)
    shared: tuple[ChildProcess, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Engines of one process."""

    sort: EngineProfile
    names: tuple[str, ...]


def fake_engine_command(sort: EngineProfile, *, count: int, prefix: str, seed: int) -> list[str]:
    """Command line of a process with ``count`` simulated engines."""
    argv = [
        *(sys.executable, "-m", "chaos.fake_engine", "--count", str(count), "--name-prefix", prefix),
        *("--model", sort.model, "--slots", str(sort.slots), "--max-model-len", str(sort.max_model_len)),
        *("--prefill-s", repr(sort.prefill_s), "--prefill-token-s", repr(sort.prefill_token_s)),
        *("--token-s", repr(sort.token_s), "--stream-interval", str(STREAM_INTERVAL), "--seed", str(seed)),
    ]
    if sort.stage is Stage.PREFILL:
        # Room for one longest request, so that KV caches that none fetches fill it within seconds.
        argv += ["--kv-cache-tokens", str(sort.max_model_len)]
        argv += ["--kv-transfer-token-s", repr(sort.kv_transfer_token_s)]
    elif sort.stage is Stage.DECODE:
        argv.append("--routing-sidecar")
    if sort.adapter:
        argv += ["--lora-modules", sort.adapter]
    if sort.prefix_cache:
        argv.append("--enable-prefix-caching")
    return [*argv, "--first-token-gate"] if sort.gate else argv


async def start_fake_engines(
    children: ChildProcesses,
    folder: Path,
    experiment: Experiment,
    pools: Sequence[PoolBlueprint],
    *,
    alone: Callable[[str], bool],
) -> RunningEngines:
    """Start the engines; those in ``alone`` get their own process and can be killed and restarted."""
    posts: dict[str, ProcessSlot] = {}
    shared: list[_Group] = []
    for sort, names in _by_sort(experiment, pools):
        own = [name for name in names if alone(name)]
        for name in own:
            posts[name] = _post(children, folder, sort, name, experiment.seed + len(posts))
        shared += _dealt(sort, [name for name in names if name not in own])
    started, _ = await asyncio.gather(
        asyncio.gather(
            *(_start_shared(children, place, group, experiment.seed) for place, group in enumerate(shared))
        ),
        asyncio.gather(*(post.start() for post in posts.values())),
    )
    listed: dict[str, Mapping[str, Any]] = {}
    for group, child in zip(shared, started, strict=True):
        listed.update(zip(group.names, child.ready["engines"], strict=True))
    for name, post in posts.items():
        assert post.child is not None  # noqa: S101 -- it was just started
        (listed[name],) = post.child.ready["engines"]
    return RunningEngines(
        ports={name: int(one["port"]) for name, one in listed.items()},
        controls={name: str(one["control"]) for name, one in listed.items()},
        posts=posts,
        shared=tuple(started),
    )


async def start_real_engines(
    children: ChildProcesses, folder: Path, pools: Sequence[PoolBlueprint]
) -> RunningEngines:
    """Start real vLLM engines, one process each; raises EngineStartError if vLLM is not installed."""
    python = vllm_replica.vllm_python()
    if python is None:
        raise EngineStartError(
            f"vLLM is not installed; run `make vllm`, or set {vllm_replica.VARIABLE} to its Python"
        )
    model = write_model(folder / "model")
    spots = [one for pool in pools for one in pool.engines]
    ports = dict(zip((one.name for one in spots), free_ports(len(spots)), strict=True))
    posts = {
        one.name: ProcessSlot(
            part=ProcessRole.ENGINE,
            target=one.name,
            children=children,
            argv=vllm_replica.vllm_command(port=ports[one.name], python=python, model=model, slots=one.slots),
            env=vllm_replica.ENVIRONMENT,
            announces=False,
            until_up=_until_up(one.name, ports[one.name]),
            frozen_pids=_core(one.name, ports[one.name]),
        )
        for one in spots
    }
    await asyncio.gather(*(post.start() for post in posts.values()))
    return RunningEngines(ports=ports, posts=posts)


async def set_engine_fault(session: aiohttp.ClientSession, control: str, fault: EngineFault | None) -> None:
    """Set or clear the fault of a simulated engine; in effect on return."""
    url = f"{control}/fault"
    if fault is None:
        async with session.delete(url) as answer:
            answer.raise_for_status()
    else:
        async with session.put(url, json=engine_fault_object(fault)) as answer:
            answer.raise_for_status()


async def call_log(session: aiohttp.ClientSession, control: str) -> Mapping[str, Any]:
    """Call log of a simulated engine, with all calls kept."""
    async with session.get(f"{control}/book", params={"calls": KEPT_CALLS}) as answer:
        answer.raise_for_status()
        found: Mapping[str, Any] = await answer.json()
        return found


def _by_sort(experiment: Experiment, pools: Sequence[PoolBlueprint]) -> list[tuple[EngineProfile, list[str]]]:
    prefill_s, token_s = token_costs_s(experiment)
    sorts: dict[EngineProfile, list[str]] = {}
    for pool in pools:
        for one in pool.engines:
            pace = one.slowness
            if pool.stage is not Stage.PREFILL:
                pace *= pool.service_s / experiment.service_s
            sort = EngineProfile(
                model=pool.model,
                slots=one.slots,
                prefill_token_s=prefill_s * pace,
                token_s=token_s * pace,
                gate=pool.gate,
                stage=pool.stage,
                max_model_len=longest_context_tokens(experiment),
                kv_transfer_token_s=kv_transfer_token_s(experiment),
                prefix_cache=experiment.spec.load.conversations is not None,
                adapter=pool.adapter,
            )
            sorts.setdefault(sort, []).append(one.name)
    return list(sorts.items())


def _dealt(sort: EngineProfile, names: Sequence[str]) -> list[_Group]:
    """Spread neighbours over processes, since faults hit neighbours together."""
    dealt = [tuple(names[place::SHARED_PROCESSES]) for place in range(SHARED_PROCESSES)]
    return [_Group(sort=sort, names=one) for one in dealt if one]


async def _start_shared(children: ChildProcesses, place: int, group: _Group, seed: int) -> ChildProcess:
    argv = fake_engine_command(
        group.sort,
        count=len(group.names),
        prefix=f"{place}-",
        seed=1000 * (seed + 1) + 100 * place,
    )
    return await children.start(f"engines-{place}", argv, ready_within_s=START_LIMIT_S)


def _post(children: ChildProcesses, folder: Path, sort: EngineProfile, name: str, seed: int) -> ProcessSlot:
    port, control = free_ports(2)
    journal = folder / f"{name}.book"
    argv = fake_engine_command(sort, count=1, prefix=f"{name}-", seed=seed)
    return ProcessSlot(
        part=ProcessRole.ENGINE,
        target=name,
        children=children,
        argv=[*argv, "--port", str(port), "--control-port", str(control), "--journal", str(journal)],
    )


def _until_up(name: str, port: int) -> Callable[[ChildProcess], Any]:
    return lambda child: vllm_replica.wait_until_up(vllm_replica.VllmReplica(name=name, port=port, child=child))


def _core(name: str, port: int) -> Callable[[ChildProcess], Sequence[int]]:
    return lambda child: [vllm_replica.VllmReplica(name=name, port=port, child=child).engine_core()]
