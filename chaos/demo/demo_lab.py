"""The demo's lab: simulated engines, real Envoys and the real control plane, as child processes.

There are two independent sides with nine engines and three Envoys each. Switchgear's side has three more engines
of a smaller model as its route's fallback; plain Envoy cannot fall back when its pool is full. Everything ends
with its ``ChildProcesses`` block.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from chaos.demo import demo_policies
from chaos.demo.demo_plan import (
    DEADLINE_S,
    ENGINES,
    FALLBACK_ENGINES,
    FALLBACK_SPEED,
    PREFILL_S,
    SLOTS,
    TOKEN_S,
    ZONES,
)
from chaos.demo.scoring import ScoredAttempt
from chaos.fake_engine.call_log import KEPT_CALLS, CallOutcome
from chaos.lab.agent_process import agent_process
from chaos.lab.control_plane_process import start_control_plane
from chaos.lab.envoy_processes import proxy_address, start_envoy, wait_for_page, xds_bootstrap
from chaos.lab.process_slot import START_LIMIT_S
from chaos.load.request_sender import LoadTarget
from chaos.processes import ChildProcesses, free_ports
from chaos.scenario.experiment_plan import ProxyPlacement
from chaos.testbed.static_envoy import PLAIN as PLAIN_ENVOY
from chaos.testbed.static_envoy import static_bootstrap

SWITCHGEAR = "switchgear"
PLAIN = "plain envoy"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoEngines:
    """Simulated engines: ``ports``, ``controls`` and ``agents`` (agent control URLs, if any) by engine name."""

    ports: Mapping[str, int]
    controls: Mapping[str, str]
    agents: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSide:
    """One side of the comparison: its engines, and an Envoy per zone as load targets.

    ``fallback`` are its engines of the smaller model; None on the plain side.
    """

    name: str
    engines: DemoEngines
    fallback: DemoEngines | None
    targets: tuple[LoadTarget, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoLab:
    """Both sides, and the control plane's address."""

    switchgear: DemoSide
    plain: DemoSide
    admin_url: str

    @property
    def sides(self) -> tuple[DemoSide, DemoSide]:
        return (self.switchgear, self.plain)


async def start_demo_lab(children: ChildProcesses, session: aiohttp.ClientSession, folder: Path) -> DemoLab:
    """Start everything and wait until both sides serve; raises NotReadyError."""
    ours, theirs, small = await asyncio.gather(
        _engines(children, SWITCHGEAR, ENGINES),
        _engines(children, "plain", ENGINES),
        _engines(children, "fallback", FALLBACK_ENGINES, model=demo_policies.FALLBACK_MODEL, speed=FALLBACK_SPEED),
    )
    agents = {name: agent_process(children, name, ours.ports[name], SLOTS) for name in ENGINES}
    await asyncio.gather(*(one.post.start() for one in agents.values()))
    agent_ports = {name: one.grpc for name, one in agents.items()}
    ours = replace(ours, agents={name: f"http://127.0.0.1:{one.http}" for name, one in agents.items()})
    our_port, *ports = free_ports(1 + 2 * len(ZONES))
    server = await start_control_plane(
        children,
        folder,
        demo_policies.policies(ours.ports, agent_ports, small.ports, our_port),
        name=demo_policies.POLICY_FILE,
    )
    our_targets, their_targets = [], []
    for index, zone in enumerate(ZONES):
        their_admin, their_port = ports[2 * index : 2 * index + 2]
        address = proxy_address(index)
        gateway = ProxyPlacement(name=f"gateway-{zone}", zone=zone)
        text, _ = xds_bootstrap(gateway, address, server.xds_port, own_source=False)
        await start_envoy(children, folder, gateway.name, text)
        plain = static_bootstrap(
            PLAIN_ENVOY,
            engine_ports=list(theirs.ports.values()),
            slots=SLOTS * len(ENGINES),
            proxies=len(ZONES),
            deadline_s=DEADLINE_S,
            listener_port=their_port,
            admin_port=their_admin,
        )
        await start_envoy(children, folder, f"plain-{zone}", plain)
        our_targets.append(LoadTarget(url=f"http://{address}:{our_port}", name=zone))
        their_targets.append(LoadTarget(url=f"http://127.0.0.1:{their_port}", name=zone))
    for target in (*our_targets, *their_targets):
        await wait_for_page(session, f"{target.url}/v1/models", lambda _: True, f"Envoy at {target.url}")
    return DemoLab(
        switchgear=DemoSide(name=SWITCHGEAR, engines=ours, fallback=small, targets=tuple(our_targets)),
        plain=DemoSide(name=PLAIN, engines=theirs, fallback=None, targets=tuple(their_targets)),
        admin_url=server.admin,
    )


async def engine_call_logs(session: aiohttp.ClientSession, side: DemoSide, *, calls: int = 0) -> Mapping[str, Any]:
    """Current call logs of a side, by engine, with the newest ``calls`` calls."""

    async def book(control: str) -> Any:
        async with session.get(f"{control}/book", params={"calls": calls}) as response:
            response.raise_for_status()
            return await response.json()

    controls = {**side.engines.controls, **(side.fallback.controls if side.fallback is not None else {})}
    found = await asyncio.gather(*map(book, controls.values()))
    return dict(zip(controls, found, strict=True))


async def scored_attempts(session: aiohttp.ClientSession, side: DemoSide) -> Sequence[ScoredAttempt]:
    """Finished calls of all engines of a side, without probes (no request id)."""
    found = await engine_call_logs(session, side, calls=KEPT_CALLS)
    return [
        ScoredAttempt(
            request_id=str(call["request_id"]),
            wasted_slot_s=float(call["wasted_slot_s"]),
            finished=call["outcome"] == CallOutcome.FINISHED,
            fallback=name in FALLBACK_ENGINES,
        )
        for name, book in found.items()
        for call in book["calls"]
        if call["request_id"]
    ]


async def _engines(
    children: ChildProcesses,
    side: str,
    names: Sequence[str],
    *,
    model: str = demo_policies.MODEL,
    speed: float = 1.0,
) -> DemoEngines:
    child = await children.start(
        f"engines-{side}",
        [
            *(sys.executable, "-m", "chaos.fake_engine", "--count", str(len(names))),
            *("--model", model, "--slots", str(SLOTS)),
            *("--prefill-s", str(PREFILL_S / speed), "--token-s", str(TOKEN_S / speed), "--first-token-gate"),
        ],
        ready_within_s=START_LIMIT_S,
    )
    listed = dict(zip(names, child.ready["engines"], strict=True))
    return DemoEngines(
        ports={name: int(one["port"]) for name, one in listed.items()},
        controls={name: str(one["control"]) for name, one in listed.items()},
        agents={},
    )
