"""Simulated engines, some with agents, Envoys, and the control plane, which is killed and comes back at its ports.

The load generator has its own process and the engines have several, so that no single process limits the
simulation on a busy machine.
"""

import asyncio
import contextlib
import itertools
import resource
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import aiohttp

from benchmarks.soak import shifted_clock
from benchmarks.soak.aged_state import write_aged_state
from benchmarks.soak.fault_plan import PlannedFault, SoakFault
from benchmarks.soak.lost_requests import FaultInterval, SoakAttempt, attempts_of
from benchmarks.soak.shifted_clock import write_shift
from benchmarks.testbed import LIMIT_S, POOL, ProcessLauncher, policy_text, until
from chaos.fake_engine import EngineConfig, EngineCrash, EngineErrorAfterWork, EngineHang, EngineShed, EngineSlow
from chaos.fake_engine.engine_faults import EngineFault
from chaos.history.request_outcomes import RequestOutcome
from chaos.lab.engine_processes import call_log, set_engine_fault
from chaos.load.open_loop import LoadProfile, run_load
from chaos.load.request_sender import LoadTarget
from chaos.processes import ChildProcess, ChildProcesses, free_ports

ENGINE_PROCESSES: Final = 3

ENEMY_PAUSE_S: Final = 0.01
"""Between two messages of the enemy: it shares the machine with the fleet."""

SPARE_DESCRIPTORS: Final = 2

ADDRESS_SPACE_MIB: Final = 1024
"""The chart's limit of memory."""

HOT_RESTARTS: Final = 2
"""One after another."""

PARENT_ENDS_AFTER_S: Final = 5
"""Of an Envoy that restarts hot: longer than a stream lasts on an engine that is not slow."""

PATIENCE_S: Final = 30.0
"""Of a caller: longer than any fault lasts, so that who gives up was forgotten and not just kept waiting."""

STREAM_TOKENS: Final[Mapping[int, float]] = {100: 1.0, 200: 1.0, 400: 1.0}
"""One to four seconds each, so that several are under way whenever something goes wrong."""

STREAM_INTERVAL: Final = 8
"""Tokens per event, once it has begun: at one each, reading them would keep the machine busier than the soak."""

_FAULTS: Final[Mapping[SoakFault, EngineFault]] = {
    SoakFault.HANG: EngineHang(health="ok"),
    SoakFault.CRASH: EngineCrash(),
    SoakFault.ERRORS: EngineErrorAfterWork(),
    SoakFault.SLOW: EngineSlow(factor=8.0),
    SoakFault.SHED: EngineShed(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlanes:
    """How many control planes there are, and their versions.

    ``other_python``: one with another version of Switchgear: a control plane changes its version at each start,
    and the second begins with the other.
    """

    count: int = 1
    other_python: Path | None = None

    def pythons(self, number: int) -> Iterator[str]:
        """The Python of each start of this control plane."""
        both = [sys.executable] if self.other_python is None else [sys.executable, str(self.other_python)]
        first = number % len(both)
        return itertools.cycle([*both[first:], *both[:first]])


@dataclass(slots=True, kw_only=True)
class ControlPlaneReplica:
    """One control plane: its ports, its files, and its process, None while it is away.

    ``pythons``: the Python of each start, and so its version of Switchgear, in turn.
    """

    name: str
    xds: int
    admin: int
    state: Path
    ledger: Path
    clock: Path
    pythons: Iterator[str]
    kills: int = 0
    server: ChildProcess | None = None


class SoakTestbed:
    """``async with``: everything stands and serves. ``inject`` does one trouble, ``load`` makes requests.

    ``enemy_seed``: first seed of a standing enemy, if there is one.

    ``spells`` is what was wrong and when, in seconds since the site stood.
    """

    def __init__(
        self,
        folder: Path,
        processes: ChildProcesses,
        *,
        engines: int,
        agents: int,
        envoys: int,
        control_planes: ControlPlanes,
        enemy_seed: int | None = None,
        verbose: bool = False,
    ) -> None:
        self.folder = folder
        self.engines = [f"e{number}" for number in range(engines)]
        self.outcomes: list[RequestOutcome] = []
        self.spells: list[FaultInterval] = []
        self.envoys = envoys
        self.began_s = 0.0
        self._verbose = verbose
        self._ports: list[int] = []
        self._controls: list[str] = []
        self._agents: list[ChildProcess | None] = [None] * agents
        self._envoys: list[ChildProcess | None] = [None] * envoys
        self._epochs = [0] * envoys
        self._processes = processes
        self._launcher = ProcessLauncher(folder, processes)
        self._lasting: dict[str, ChildProcess] = {}
        self._edits = 0
        self._starts = 0
        self._enemy_seed = enemy_seed
        self._enemy: ChildProcess | None = None
        self._listener, self._enemy_port, *rest = free_ports(2 + 2 * agents + envoys + 2 * control_planes.count)
        self._agent_ports, rest = rest[: 2 * agents], rest[2 * agents :]
        self._envoy_admins, rest = rest[:envoys], rest[envoys:]
        self.replicas = [
            _replica(folder, number, rest[2 * number : 2 * number + 2], control_planes.pythons(number))
            for number in range(control_planes.count)
        ]
        self._killed: set[int] = set()
        self._writing = asyncio.Lock()
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            self._http = await stack.enter_async_context(
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LIMIT_S))
            )
            await self._start_engines()
            for number in range(len(self._agents)):
                await self._start_agent(number)
            (self.folder / "policies").mkdir(parents=True)
            self._edit()
            for replica in self.replicas:
                self._lay_past(replica)
                write_shift(replica.clock, 0.0)
                await self._start_server(replica)
            for number in range(self.envoys):
                await self._start_envoy(number)
            for number in range(self.envoys):
                await self._served(number)
            await self._start_enemy()
            self.began_s = time.monotonic()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def now_s(self) -> float:
        """Since the site stood."""
        return time.monotonic() - self.began_s

    # -- parts ---------------------------------------------------------------------------------------------

    async def _start_engines(self) -> None:
        each = -(-len(self.engines) // ENGINE_PROCESSES)
        for number in range(ENGINE_PROCESSES):
            count = min(each, len(self.engines) - each * number)
            command = [
                sys.executable,
                "-m",
                "chaos.fake_engine",
                "--count",
                str(count),
                "--seed",
                str(100 * number),
                "--stream-interval",
                str(STREAM_INTERVAL),
            ]
            child = await self._processes.start(f"engines-{number}", command, ready_within_s=LIMIT_S)
            self._lasting[child.name] = child
            self._ports += [int(one["port"]) for one in child.ready["engines"]]
            self._controls += [str(one["control"]) for one in child.ready["engines"]]

    async def _start_agent(self, number: int) -> None:
        self._starts += 1
        http, grpc = self._agent_ports[2 * number : 2 * number + 2]
        self._agents[number] = await self._launcher.start_agent(
            f"agent-{number}-{self._starts}", self._ports[number], (http, grpc)
        )

    async def _start_server(self, replica: ControlPlaneReplica, address_space_mib: int = 0) -> None:
        """A control plane; with a limit of its address space, 0: none."""
        self._starts += 1
        flags = ["-f", str(self.folder / "policies"), "--state-dir", str(replica.state)]
        flags += ["--ledger", str(replica.ledger)]
        # By its file and without the checkout in the path of modules: the version is that of the environment.
        program = [next(replica.pythons), "-P", shifted_clock.__file__, str(replica.clock)]
        if address_space_mib:
            program = ["sh", "-c", 'ulimit -v "$0" && exec "$@"', str(1024 * address_space_mib), *program]
        replica.server = await self._launcher.start_server(
            f"serve-{self._starts}", flags, (replica.xds, replica.admin), program
        )

    async def _start_envoy(self, number: int) -> None:
        self._epochs[number] = 0
        self._envoys[number] = await self._launcher.start_envoy(
            number,
            _node(number),
            [one.xds for one in self.replicas],
            self._envoy_admins[number],
            self._envoy_flags(),
        )

    def _envoy_flags(self) -> Sequence[str]:
        verbose = ("--component-log-level", "http:debug,router:debug,pool:debug,upstream:debug")
        return verbose if self._verbose else ()

    async def _start_enemy(self) -> None:
        """A hostile proxy, operator's host and agent, if there are any; all of the first control plane."""
        if self._enemy_seed is None:
            return
        self._starts += 1
        seed = self._enemy_seed + 1_000 * self._starts
        command = [sys.executable, "-m", "benchmarks.soak.enemy"]
        first = self.replicas[0]
        command += [f"127.0.0.1:{first.xds}", f"127.0.0.1:{first.admin}", "--seed", str(seed)]
        command += ["--agent", str(self._enemy_port), "--pause", str(ENEMY_PAUSE_S)]
        self._enemy = await self._processes.start(f"enemy-{self._starts}", command, ready_within_s=LIMIT_S)

    async def _served(self, number: int) -> None:
        """Return once this Envoy answers through an engine."""
        body = {"prompt": "ready?", "max_tokens": 1}
        url = f"http://127.0.0.{number + 1}:{self._listener}/v1/completions"

        async def answered() -> bool:
            with contextlib.suppress(aiohttp.ClientError):
                async with self._http.post(url, json=body) as answer:
                    return answer.status == 200
            return False

        await until(answered, f"an answer at {url}")

    def _lay_past(self, replica: ControlPlaneReplica) -> None:
        text = (self.folder / "policies" / "chat.yaml").read_text()
        write_aged_state(replica.ledger, replica.state, text, pool=POOL, engines=self.engines)

    def _edit(self, *, bad: bool = False) -> None:
        """Apply changed policies, which every proxy receives."""
        self._edits += not bad
        endpoints: list[dict[str, Any]] = [
            {"address": "127.0.0.1", "port": port, "name": name}
            for name, port in zip(self.engines, self._ports, strict=True)
        ]
        for number in range(len(self._agents)):
            endpoints[number]["agentPort"] = self._agent_ports[2 * number + 1]
        if self._enemy_seed is not None:
            endpoints[len(self._agents)]["agentPort"] = self._enemy_port
        specs: dict[str, dict[str, Any]] = {
            "EnginePool": {"model": EngineConfig().model, "endpoints": endpoints},
            "ModelRoute": {
                "listener": {"port": self._listener, "address": "127.0.0.1"},
                "pools": [{"pool": POOL}],
            },
            "ResiliencePolicy": {
                "pools": [POOL],
                "breaker": {"errorRatePercent": "most" if bad else 20 + self._edits % 10},
                # Also what is in routes, so that more than endpoints is pushed.
                "timeouts": {"nonStreaming": {"total": f"{240 + self._edits % 7}s"}},
            },
        }
        path = self.folder / "policies" / "chat.yaml"
        path.with_suffix(".tmp").write_text(policy_text(specs, POOL))
        path.with_suffix(".tmp").replace(path)

    # -- what is done to it --------------------------------------------------------------------------------

    async def inject(self, trouble: PlannedFault) -> None:
        """Do one trouble, and undo it when its time is over."""
        began_s = self.now_s()
        engine = self.engines[trouble.which] if trouble.what in _FAULTS else ""
        proxy = _node(trouble.which) if trouble.what in _ENVOY_FAULTS else ""
        match trouble.what:
            case SoakFault.EDIT:
                async with self._writing:
                    self._edit()
            case SoakFault.BAD_EDIT:
                async with self._writing:
                    self._edit(bad=True)
                    await asyncio.sleep(trouble.lasts_s)
                    self._edit()
            case SoakFault.AGENT_KILLED:
                await self._restart_agent(trouble.which)
            case SoakFault.ENVOY_KILLED | SoakFault.ENVOY_HOT_RESTARTED:
                envoy, self._envoys[trouble.which] = self._envoys[trouble.which], None
                if envoy is None:
                    return  # away already
                await _ENVOY_FAULTS[trouble.what](self, trouble.which, envoy)
            case SoakFault.ENEMY_REPLACED:
                await self._replace_enemy()
            case fault if fault in _FAULTS:
                control = self._controls[trouble.which]
                await set_engine_fault(self._http, control, _FAULTS[fault])
                await asyncio.sleep(trouble.lasts_s)
                await set_engine_fault(self._http, control, None)
            case _:
                await self._disturb_server(trouble)
        self.spells.append(
            FaultInterval(what=trouble.what, from_s=began_s, to_s=self.now_s(), engine=engine, proxy=proxy)
        )

    async def _disturb_server(self, trouble: PlannedFault) -> None:
        """A fault of a control plane; it may be away."""
        replica = self.replicas[trouble.which]
        match trouble.what:
            case SoakFault.CONTROL_PLANE_KILLED:
                await self._restart_server(replica)
            case SoakFault.ADDRESS_SPACE_LIMITED:
                await self._restart_server(replica, ADDRESS_SPACE_MIB)
            case SoakFault.CLOCK_JUMPED:
                write_shift(replica.clock, trouble.by_s)
                await asyncio.sleep(trouble.lasts_s)
                write_shift(replica.clock, 0.0)
            case SoakFault.NO_DESCRIPTORS:
                if (server := replica.server) is not None:
                    await _without_descriptors(server.pid, trouble.lasts_s)
            case SoakFault.CONTROL_PLANE_PAUSED:
                if (server := replica.server) is not None:
                    await _paused(server, trouble.lasts_s)

    async def _restart_envoy(self, number: int, envoy: ChildProcess) -> None:
        """Kill an Envoy and start it again."""
        await self._kill(envoy)
        await self._start_envoy(number)
        await self._served(number)

    async def _restart_envoy_hot(self, number: int, envoy: ChildProcess) -> None:
        """Let an Envoy take over from itself, again and again."""
        for _ in range(HOT_RESTARTS):
            self._killed.add(envoy.pid)
            self._epochs[number] += 1
            after = await self._launcher.restart_envoy_hot(
                number, self._epochs[number], PARENT_ENDS_AFTER_S, self._envoy_flags()
            )
            async with asyncio.timeout(LIMIT_S):
                await envoy.wait()
            envoy = after
        await self._served(number)
        self._envoys[number] = envoy

    async def _restart_agent(self, number: int) -> None:
        if (agent := self._agents[number]) is not None:
            self._agents[number] = None  # prevents a second start meanwhile
            await self._kill(agent)
            await self._start_agent(number)

    async def _restart_server(self, replica: ControlPlaneReplica, address_space_mib: int = 0) -> None:
        if (server := replica.server) is not None:
            replica.server = None
            await self._kill(server)
            replica.kills += 1
            await self._start_server(replica, address_space_mib)

    async def _replace_enemy(self) -> None:
        if (enemy := self._enemy) is not None:
            self._enemy = None
            await self._kill(enemy)
            await self._start_enemy()

    async def _kill(self, child: ChildProcess) -> None:
        self._killed.add(child.pid)
        child.signal_group(signal.SIGKILL)
        await child.wait()

    async def load(self, rate_per_s: float, streams_per_s: float, seed: int, stop: asyncio.Event) -> None:
        """Requests and streams to all Envoys in turn."""
        targets = tuple(
            LoadTarget(url=f"http://127.0.0.{number + 1}:{self._listener}", name=_node(number))
            for number in range(self.envoys)
        )
        answers = LoadProfile(
            targets=targets,
            rate_per_s=rate_per_s,
            max_tokens={4: 1.0},
            streaming_share=0.0,
            deadline_s=PATIENCE_S,
            seed=seed,
        )
        streams = replace(
            answers,
            rate_per_s=streams_per_s,
            max_tokens=STREAM_TOKENS,
            streaming_share=1.0,
            seed=seed + 1_000_000,  # it is in the ids of the requests
        )
        async with asyncio.TaskGroup() as group:
            for profile in (answers, streams):
                group.create_task(run_load(profile, self.outcomes.append, stop=stop))

    # -- what is seen of it --------------------------------------------------------------------------------

    async def get_json(self, replica: ControlPlaneReplica, path: str) -> Any:
        """What a control plane answers; None while it is away."""
        with contextlib.suppress(aiohttp.ClientError):
            async with self._http.get(f"http://127.0.0.1:{replica.admin}{path}") as answer:
                return await answer.json()
        return None

    def processes(self) -> Mapping[str, int]:
        """Who runs now, by name: the id of the process."""
        found = {name: child.pid for name, child in self._lasting.items()}
        for name, children in (("agent", self._agents), ("envoy", self._envoys)):
            found |= {f"{name}-{number}": child.pid for number, child in enumerate(children) if child is not None}
        return {**found, **{one.name: one.server.pid for one in self.replicas if one.server is not None}}

    async def heaps(self) -> Mapping[str, Mapping[str, float]]:
        """Bytes that each Envoy that answers has taken for its heap, and allocated, by names of ``processes``."""
        found = {}
        for number, port in enumerate(self._envoy_admins):
            with contextlib.suppress(aiohttp.ClientError):
                async with self._http.get(f"http://127.0.0.1:{port}/memory") as answer:
                    memory = await answer.json(content_type=None)
                    found[f"envoy-{number}"] = {
                        "heap_bytes": float(memory["heap_size"]),
                        "allocated_bytes": float(memory["allocated"]),
                    }
        return found

    def died(self) -> Sequence[str]:
        """Processes that ended without being killed, with the end of their output."""
        return [
            f"{child.name} ended by itself with status {child.returncode}: {child.tail()[-300:]}"
            for child in self._processes.children
            if child.returncode is not None and child.pid not in self._killed
        ]

    async def attempts(self) -> Mapping[str, Sequence[SoakAttempt]]:
        """What the engines' books say, by request."""
        found: dict[str, list[SoakAttempt]] = {}
        for name, control in zip(self.engines, self._controls, strict=True):
            for request_id, attempt in attempts_of(name, await call_log(self._http, control), self.began_s):
                found.setdefault(request_id, []).append(attempt)
        return found


_ENVOY_FAULTS: Final = {
    SoakFault.ENVOY_KILLED: SoakTestbed._restart_envoy,
    SoakFault.ENVOY_HOT_RESTARTED: SoakTestbed._restart_envoy_hot,
}


async def _without_descriptors(pid: int, lasts_s: float) -> None:
    """Let a process open few files more than it has, for this long; it may end meanwhile."""
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        few = _open_files(pid) + SPARE_DESCRIPTORS
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (few, limits[1]))
        await asyncio.sleep(lasts_s)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


async def _paused(child: ChildProcess, lasts_s: float) -> None:
    """Let a process stand still for this long; it may end meanwhile."""
    child.signal_group(signal.SIGSTOP)
    try:
        await asyncio.sleep(lasts_s)
    finally:
        child.signal_group(signal.SIGCONT)


def _replica(folder: Path, number: int, ports: Sequence[int], pythons: Iterator[str]) -> ControlPlaneReplica:
    xds, admin = ports
    suffix = f"-{number + 1}" if number else ""
    return ControlPlaneReplica(
        name=f"control plane{suffix.replace('-', ' ')}",
        xds=xds,
        admin=admin,
        state=folder / f"state{suffix}",
        ledger=folder / f"ledger{suffix}.jsonl",
        clock=folder / f"clock{suffix}",
        pythons=pythons,
    )


def _open_files(pid: int) -> int:
    return len([*Path(f"/proc/{pid}/fd").iterdir()])


def _node(number: int) -> str:
    return f"soak-{number}"
