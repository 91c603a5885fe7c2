"""What the story is played on: simulated engines, real Envoys and the real control plane, as child processes.

Two sides stand beside each other, each with its own nine engines and three Envoys, so that neither can disturb
the other's engines. Switchgear's side has three engines of a smaller model more: the fallback of its route, which
plain Envoy has no way to use when its pool is full. Everything ends with the ``Processes`` block it was started
in.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from chaos.demo import setting
from chaos.demo.plan import DEADLINE_S, ENGINES, FALLBACK_ENGINES, FALLBACK_SPEED, PREFILL_S, SLOTS, TOKEN_S, ZONES
from chaos.demo.score import Attempt
from chaos.fake_engine.book import KEPT_CALLS
from chaos.fake_engine.book import Outcome as CallOutcome
from chaos.fitting.static_envoy import PLAIN as PLAIN_ENVOY
from chaos.fitting.static_envoy import bootstrap
from chaos.lab.agents import agent
from chaos.lab.control_plane import start_control_plane
from chaos.lab.post import START_LIMIT_S
from chaos.lab.proxies import proxy_address, start_envoy, steered, until
from chaos.load.sender import Target
from chaos.processes import Processes, free_ports
from chaos.scenario.plan import ProxySpot

SWITCHGEAR = "switchgear"
PLAIN = "plain envoy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """Simulated engines. ``ports`` and ``controls`` are by engine name, and so is ``agents``: where the agent
    beside an engine takes orders; empty where there is none.
    """

    ports: Mapping[str, int]
    controls: Mapping[str, str]
    agents: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of the comparison: its engines, and an Envoy per zone as targets of the load.

    ``fallback`` are its engines of the smaller model; None on the side that has no use for them.
    """

    name: str
    engines: Engines
    fallback: Engines | None
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Both sides, and where the control plane answers."""

    switchgear: Side
    plain: Side
    admin_url: str

    @property
    def sides(self) -> tuple[Side, Side]:
        return (self.switchgear, self.plain)


async def stage(children: Processes, session: aiohttp.ClientSession, folder: Path) -> Stage:
    """Start everything and wait until both sides serve; NotReadyError when one does not."""
    ours, theirs, small = await asyncio.gather(
        _engines(children, SWITCHGEAR, ENGINES),
        _engines(children, "plain", ENGINES),
        _engines(children, "fallback", FALLBACK_ENGINES, model=setting.FALLBACK_MODEL, speed=FALLBACK_SPEED),
    )
    agents = {name: agent(children, name, ours.ports[name], SLOTS) for name in ENGINES}
    await asyncio.gather(*(one.post.start() for one in agents.values()))
    agent_ports = {name: one.grpc for name, one in agents.items()}
    ours = replace(ours, agents={name: f"http://127.0.0.1:{one.http}" for name, one in agents.items()})
    our_port, *ports = free_ports(1 + 2 * len(ZONES))
    server = await start_control_plane(
        children,
        folder,
        setting.policies(ours.ports, agent_ports, small.ports, our_port),
        name=setting.POLICY_FILE,
    )
    our_targets, their_targets = [], []
    for index, zone in enumerate(ZONES):
        their_admin, their_port = ports[2 * index : 2 * index + 2]
        address = proxy_address(index)
        gateway = ProxySpot(name=f"gateway-{zone}", zone=zone)
        text, _ = steered(gateway, address, server.xds_port, own_source=False)
        await start_envoy(children, folder, gateway.name, text)
        plain = bootstrap(
            PLAIN_ENVOY,
            engine_ports=list(theirs.ports.values()),
            slots=SLOTS * len(ENGINES),
            proxies=len(ZONES),
            deadline_s=DEADLINE_S,
            listener_port=their_port,
            admin_port=their_admin,
        )
        await start_envoy(children, folder, f"plain-{zone}", plain)
        our_targets.append(Target(url=f"http://{address}:{our_port}", name=zone))
        their_targets.append(Target(url=f"http://127.0.0.1:{their_port}", name=zone))
    for target in (*our_targets, *their_targets):
        await until(session, f"{target.url}/v1/models", lambda _: True, f"the Envoy at {target.url}")
    return Stage(
        switchgear=Side(name=SWITCHGEAR, engines=ours, fallback=small, targets=tuple(our_targets)),
        plain=Side(name=PLAIN, engines=theirs, fallback=None, targets=tuple(their_targets)),
        admin_url=server.admin,
    )


async def books(session: aiohttp.ClientSession, side: Side, *, calls: int = 0) -> Mapping[str, Any]:
    """What the book of each engine of a side says now, by engine; with the newest ``calls`` calls."""

    async def book(control: str) -> Any:
        async with session.get(f"{control}/book", params={"calls": calls}) as response:
            response.raise_for_status()
            return await response.json()

    controls = {**side.engines.controls, **(side.fallback.controls if side.fallback is not None else {})}
    found = await asyncio.gather(*map(book, controls.values()))
    return dict(zip(controls, found, strict=True))


async def attempts(session: aiohttp.ClientSession, side: Side) -> Sequence[Attempt]:
    """Every call that is over, of every engine of a side; probes, which have no request id, are left out."""
    found = await books(session, side, calls=KEPT_CALLS)
    return [
        Attempt(
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
    children: Processes, side: str, names: Sequence[str], *, model: str = setting.MODEL, speed: float = 1.0
) -> Engines:
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
    return Engines(
        ports={name: int(one["port"]) for name, one in listed.items()},
        controls={name: str(one["control"]) for name, one in listed.items()},
        agents={},
    )
