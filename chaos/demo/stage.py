"""What the story is played on: simulated engines, real Envoys and the real control plane, as child processes.

Two sides stand beside each other, each with its own nine engines and three Envoys, so that neither can disturb
the other's engines. Switchgear's side has three engines of a smaller model more: the fallback of its route, which
plain Envoy has no way to use when its pool is full. Everything ends with the ``Processes`` block it was started
in.
"""

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from chaos.demo import setting
from chaos.demo.plan import ENGINES, FALLBACK_ENGINES, FALLBACK_SPEED, PREFILL_S, SLOTS, TOKEN_S, ZONES
from chaos.demo.score import Attempt
from chaos.fake_engine.book import KEPT_CALLS
from chaos.fake_engine.book import Outcome as CallOutcome
from chaos.load.sender import Target
from chaos.processes import Processes, envoy_command, free_ports

START_LIMIT_S = 30.0
"""Longest wait for a child to be ready; usually it takes about a second."""

SWITCHGEAR = "switchgear"
PLAIN = "plain envoy"


class StageError(RuntimeError):
    """The stage could not be set; the message says what was waited for."""


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
    """Start everything and wait until both sides serve."""
    ours, theirs, small = await asyncio.gather(
        _engines(children, SWITCHGEAR, ENGINES),
        _engines(children, "plain", ENGINES),
        _engines(children, "fallback", FALLBACK_ENGINES, model=setting.FALLBACK_MODEL, speed=FALLBACK_SPEED),
    )
    agents = await asyncio.gather(*(_agent(children, name, ours.ports[name]) for name in ENGINES))
    agent_ports = {name: grpc_port for name, (grpc_port, _) in zip(ENGINES, agents, strict=True)}
    ours = replace(ours, agents={name: url for name, (_, url) in zip(ENGINES, agents, strict=True)})
    xds_port, admin_port, our_port, *ports = free_ports(3 + 3 * len(ZONES))
    admin_url = f"http://127.0.0.1:{admin_port}"
    policies = folder / "policies"
    policies.mkdir()
    (policies / setting.POLICY_FILE).write_text(
        setting.policies(ours.ports, agent_ports, small.ports, our_port), encoding="utf-8"
    )
    await children.start(
        "control-plane",
        [
            *(sys.executable, "-m", "xds_server", "serve"),
            *("--policies", str(policies)),
            *("--listen", f"127.0.0.1:{xds_port}"),
            *("--admin", f"127.0.0.1:{admin_port}"),
            *("--state-dir", str(folder / "state")),
        ],
    )
    await _until_ok(session, f"{admin_url}/readyz", "the control plane")
    our_targets, their_targets = [], []
    for index, zone in enumerate(ZONES):
        our_admin, their_admin, their_port = ports[3 * index : 3 * index + 3]
        # Real gateways stand on hosts of their own; here each has a loopback address of its own.
        address = f"127.0.0.{index + 2}"
        bootstrap = await _output(
            *(sys.executable, "-m", "xds_server", "bootstrap"),
            *("--node", f"gateway-{zone}", "--zone", zone, "--listen-address", address),
            *("--server", f"127.0.0.1:{xds_port}", "--admin-port", str(our_admin)),
        )
        await _envoy(children, folder, f"gateway-{zone}", bootstrap)
        plain = setting.plain_envoy(theirs.ports, their_port, their_admin)
        await _envoy(children, folder, f"plain-{zone}", plain)
        our_targets.append(Target(url=f"http://{address}:{our_port}", name=zone))
        their_targets.append(Target(url=f"http://127.0.0.1:{their_port}", name=zone))
    for target in (*our_targets, *their_targets):
        await _until_ok(session, f"{target.url}/v1/models", f"the Envoy at {target.url}")
    return Stage(
        switchgear=Side(name=SWITCHGEAR, engines=ours, fallback=small, targets=tuple(our_targets)),
        plain=Side(name=PLAIN, engines=theirs, fallback=None, targets=tuple(their_targets)),
        admin_url=admin_url,
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


async def _agent(children: Processes, name: str, engine_port: int) -> tuple[int, str]:
    """Start the agent beside an engine: its gRPC port, and the URL where it takes orders."""
    child = await children.start(
        f"agent-{name}",
        [
            *(sys.executable, "-m", "engine.agent", "run"),
            *("--engine", f"http://127.0.0.1:{engine_port}", "--slots", str(SLOTS)),
            *("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--gpu", "off"),
        ],
        ready_within_s=START_LIMIT_S,
    )
    return int(child.ready["grpc_port"]), f"http://127.0.0.1:{child.ready['http_port']}"


async def _envoy(children: Processes, folder: Path, name: str, bootstrap: str) -> None:
    path = folder / f"{name}.yaml"
    path.write_text(bootstrap, encoding="utf-8")
    await children.start(name, envoy_command(path))


async def _output(*argv: str) -> str:
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    if process.returncode:
        raise StageError(f"{' '.join(argv)} ended with status {process.returncode}")
    return out.decode()


async def _until_ok(session: aiohttp.ClientSession, url: str, what: str) -> None:
    """Wait until ``url`` answers 200."""
    limit_s = time.monotonic() + START_LIMIT_S
    seen = "nothing"
    while time.monotonic() < limit_s:
        try:
            async with session.get(url, timeout=aiohttp.ClientTimeout(total=2.0)) as response:
                if response.status == 200:
                    return
                seen = f"status {response.status}"
        except (aiohttp.ClientError, TimeoutError) as problem:
            seen = str(problem) or type(problem).__name__
        await asyncio.sleep(0.05)
    raise StageError(f"{what} was not ready after {START_LIMIT_S:g} s; last seen: {seen}")
