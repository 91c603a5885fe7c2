"""A running agent: monitors its engine, serves reports, and stops on a signal.

All tasks live in one group; cancelling it stops the agent. SIGTERM first drains the engine within its deadline, so
that stopping agent and engine together loses no request.
"""

import asyncio
import contextlib
import random
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import grpc.aio
import structlog
from aiohttp import web

from engine.address import ListenAddress
from engine.agent import agent_report, kubelet_probes
from engine.agent.agent_config import AgentConfig
from engine.agent.agent_engine_state import DrainOrder, EngineHealthState
from engine.agent.agent_http import application
from engine.agent.agent_tls import AgentTls, engine_client_tls
from engine.agent.config_error import AgentConfigError
from engine.agent.drain import DrainOutcome, DrainResult, DrainWaiter
from engine.agent.engine_monitor import EngineMonitor
from engine.agent.gpu_monitor import GpuMonitor
from engine.agent.grpc_health import GrpcHealthService
from engine.agent.kubelet_probes import KubeletProbeResult
from engine.agent.orphaned_cores import orphaned_cores
from engine.api_key_file import ApiKey, ApiKeyFile
from engine.engine_http import EngineHttp, EngineTarget, http_session
from engine.gpu.gpu_judgement import GpuJudgement
from engine.heartbeat import Heartbeat
from engine.limited_listener import LINGERING_S, LimitedListener, http_logger
from engine.report import Verdict
from engine.tls.engine_trust import EngineIdentity
from engine.watch_server import RemovalProgress, WatchServer

log = structlog.get_logger()

# After the drain, seconds for watchers to read the last report before their streams end.
_LAST_WORDS_S: Final = 0.2

# Deadline of a drain until a control plane sends the pool's.
_UNTOLD_DEADLINE_S: Final = 30.0

# Close connections idle for this long: each uses a descriptor.
_IDLE_S: Final = 75.0

# Limits of the HTTP port: all hosts, one host; and of the gRPC port.
_MOST_CONNECTIONS: Final = 256
_MOST_OF_HOST: Final = 64
_GRPC_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_allowed_incoming_connections", 256),
    ("grpc.server_handshake_timeout_ms", 20_000),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundPorts:
    """Ports in use."""

    http_port: int
    grpc_port: int


class Agent:
    """``await run(announce)`` until SIGTERM or SIGINT; ``announce`` gets the ports once both are open."""

    def __init__(self, config: AgentConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._rng = random.Random()  # noqa: S311 -- varies prompts, guards no secret
        self._heartbeat = Heartbeat(clock)
        self._locks = None if config.tls is None else AgentTls(config.tls, config.allowed_clients)
        self._watch = WatchServer(
            boot_id=_boot_id(1),
            permits=(lambda _: True) if self._locks is None else self._locks.permits_watch,
            lasts_unix_s=(lambda: None) if self._locks is None else self._locks.validity_unix_s,
            on_change=self._removal_changed,
        )
        self._health = GrpcHealthService()
        self._answers_changed = asyncio.Event()
        self._drains = DrainWaiter(lambda: self._standing, self._removal, clock)
        self._gpus = GpuMonitor(config, self._hear_gpu)
        self._samples = agent_report.AgentMetrics()
        self._follower: EngineMonitor | None = None
        self._nothing_yet = EngineHealthState.new(config, clock())
        self._boot = 1
        self._draining_since_sequence = 0
        self._pool_deadline_s: float | None = None
        self._default_since_s: float | None = None
        self._verdict: Verdict | None = None
        self._ended = asyncio.Event()
        self._goodbye: asyncio.Task[None] | None = None

    # -- for the HTTP port ------------------------------------------------------------------------------------

    @property
    def remote_drain(self) -> bool:
        """Whether other machines may drain the engine."""
        return self._config.remote_drain

    @property
    def permits(self) -> Callable[[tuple[str, ...]], bool] | None:
        """Whether a client with these identities may drain; None without client certificates."""
        return None if self._locks is None else self._locks.permits

    def ready(self) -> KubeletProbeResult:
        """Readiness."""
        return kubelet_probes.readiness(self._standing)

    def alive(self) -> KubeletProbeResult:
        """Liveness of the engine's process."""
        return kubelet_probes.liveness(self._standing, self._config, self._clock())

    def started(self) -> KubeletProbeResult:
        """Startup state of the engine."""
        return kubelet_probes.startup(self._standing, self._config)

    def metrics(self) -> bytes:
        """Prometheus metrics page."""
        return self._samples.text(
            self._standing,
            self._config,
            self._clock(),
            watchers=len(self._watch.watchers),
            look_s=0.0 if self._follower is None else self._follower.look_s,
        )

    def report_json(self) -> bytes:
        """Latest report and probe answers; without a verdict before the first report."""
        told = self._watch.report
        if told is None:
            return b'{"verdict": null}\n'
        return agent_report.report_json(told, self._standing, self._config, self._clock())

    async def drain(self, deadline_s: float | None) -> DrainResult:
        """Drain the engine within ``deadline_s`` seconds; return the outcome.

        None: within ``drain.deadline`` of the pool, which control planes send while the engine drains.
        """
        now_s = self._clock()
        if self._standing.order is None:
            self._pool_deadline_s = None
        self._default_since_s = now_s if deadline_s is None else None
        limit_s = self._default_deadline_s() if deadline_s is None else deadline_s
        since_s = now_s if self._standing.order is None else self._standing.order.since_s
        log.info("drain.ordered", deadline_s=limit_s)
        self._following.set_drain_order(DrainOrder(since_s=since_s, deadline_s=now_s + limit_s))
        answer = await self._drains.wait(
            lambda: now_s + (self._default_deadline_s() if deadline_s is None else deadline_s)
        )
        log.info("drain.ended", outcome=answer.outcome.value, waited_s=answer.waited_s, in_flight=answer.in_flight)
        return answer

    def _default_deadline_s(self) -> float:
        """Deadline of a drain that states none: the pool's, but not below ``--drain-deadline``."""
        own_s, pool_s = self._config.drain_deadline_s, self._pool_deadline_s
        if pool_s is None:
            return _UNTOLD_DEADLINE_S if own_s is None else own_s
        return pool_s if own_s is None else max(own_s, pool_s)

    def undrain(self) -> bool:
        """Undrain; return whether the engine was draining."""
        was_draining = self._standing.order is not None
        if was_draining:
            log.info("drain.taken_back")
            self._following.set_drain_order(None)
        return was_draining

    def check_soon(self) -> bool:
        """Request a deep check of the GPUs; return whether one will run."""
        return self._gpus.check_soon()

    # -- life ---------------------------------------------------------------------------------------------------

    async def run(self, announce: Callable[[BoundPorts], None]) -> None:
        """Monitor and serve until stopped. ConfigError if a port is unavailable."""
        config = self._config
        trust = config.engine_trust
        means = None if trust is None else engine_client_tls(trust)
        api_key = _api_key(config.engine_api_key_file)
        target = EngineTarget(
            address=config.engine.host,
            port=config.engine.port,
            model=config.model,
            probe=config.probe,
            name=None if trust is None else EngineIdentity(server_name=config.engine_server_name),
        )
        self._heartbeat.start()
        try:
            async with http_session() as http, self._grpc() as grpc_port, self._http() as http_port:
                engine = EngineHttp(
                    http, target, self._clock, self._heartbeat.late_since, means=means, api_key=api_key
                )
                self._follower = EngineMonitor(engine, config, self._changed, clock=self._clock, rng=self._rng)
                self._listen_to_signals()
                async with asyncio.TaskGroup() as tasks:
                    running = [tasks.create_task(self._follower.run()), tasks.create_task(self._say_health())]
                    if self._locks is not None:
                        running.append(tasks.create_task(self._locks.run()))
                    if config.gpu != "off":
                        running.append(tasks.create_task(self._gpus.run()))
                    announce(BoundPorts(http_port=http_port, grpc_port=grpc_port))
                    await self._ended.wait()
                    for task in running:
                        task.cancel()
        finally:
            self._heartbeat.stop()

    @contextlib.asynccontextmanager
    async def _grpc(self) -> AsyncIterator[int]:
        server = grpc.aio.server(options=_GRPC_OPTIONS)
        self._watch.add_to(server)
        self._health.add_to(server)
        try:
            if self._locks is None:
                port = server.add_insecure_port(str(self._config.grpc))
            else:
                port = server.add_secure_port(str(self._config.grpc), self._locks.grpc_credentials())
        except RuntimeError as error:
            raise AgentConfigError(f"--grpc: cannot listen on {self._config.grpc}") from error
        await server.start()
        try:
            yield port
        finally:
            await server.stop(None)

    @contextlib.asynccontextmanager
    async def _http(self) -> AsyncIterator[int]:
        runner = web.AppRunner(
            application(self),
            access_log=None,
            logger=http_logger(),
            shutdown_timeout=0.5,
            keepalive_timeout=_IDLE_S,
            lingering_time=LINGERING_S,
        )
        await runner.setup()
        try:
            assert runner.server is not None  # noqa: S101 -- setup() made it
            address = self._config.http
            visitors = LimitedListener(
                runner.server,
                what="connections to --http",
                most=_MOST_CONNECTIONS,
                most_of_host=_MOST_OF_HOST,
                turned_away=lambda _host: self._samples.refused.inc(),
                tls=None if self._locks is None else self._locks.http_context(),
            )
            try:
                port = await visitors.open(address)
            except OSError as error:
                raise AgentConfigError(f"--http: cannot listen on {address}: {error.strerror}") from error
            try:
                yield port
            finally:
                visitors.close()
        finally:
            await runner.cleanup()

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._ended.set)
        loop.add_signal_handler(signal.SIGTERM, self._terminate)

    def _terminate(self) -> None:
        """Drain and stop; on a second signal stop at once."""
        if self._goodbye is None:
            self._goodbye = asyncio.create_task(self._leave())
        else:
            self._ended.set()

    async def _leave(self) -> None:
        try:
            order = self._standing.order
            if order is None or (order.deadline_s or 0.0) > self._clock():
                answer = await self.drain(self._config.drain_deadline_s)
                if answer.outcome is not DrainOutcome.UNDRAINED:
                    await asyncio.sleep(_LAST_WORDS_S)
        finally:
            self._ended.set()

    # -- reports ------------------------------------------------------------------------------------------------

    @property
    def _standing(self) -> EngineHealthState:
        return self._nothing_yet if self._follower is None else self._follower.standing

    @property
    def _following(self) -> EngineMonitor:
        assert self._follower is not None  # noqa: S101 -- the ports open after it is made
        return self._follower

    def _hear_gpu(self, gpu: GpuJudgement) -> None:
        self._following.on_gpu_judgement(gpu)

    def _changed(self) -> None:
        """Publish the current state."""
        now, follower, at_s = self._standing, self._following, self._clock()
        if now.boot.number != self._boot:
            self._boot = now.boot.number
            self._watch.new_boot(_boot_id(self._boot))
            self._draining_since_sequence = 0
            self._gpus.engine_restarted()
        gpu = agent_report.gpu_summary(now, self._gpus.readings, self._gpus.xids)
        report = agent_report.report(
            now,
            self._config,
            at_s,
            model=follower.model,
            revision=follower.revision,
            gpu=gpu,
            adapters=follower.adapters,
        )
        if report is None:
            return
        told = self._watch.publish(report)
        if now.order is None:
            self._draining_since_sequence = 0
        elif not self._draining_since_sequence:
            self._draining_since_sequence = told.sequence
        if now.verdict is not self._verdict:
            log.info("verdict", was=self._verdict, now=now.verdict, evidence=told.evidence, boot=self._boot)
            self._verdict = now.verdict
            if now.verdict in (Verdict.DEAD, Verdict.STARTING):
                for core in orphaned_cores():
                    log.warning("engine.orphaned_core", process=core.pid, reason=core.sentence)
        self._drains.notify()
        self._answers_changed.set()

    async def _say_health(self) -> None:
        """Update the gRPC health service; liveness also changes with time."""
        while True:
            self._answers_changed.clear()
            ready = self.ready().yes
            await self._health.set_statuses(
                {"": ready, "readyz": ready, "livez": self.alive().yes, "startupz": self.started().yes}
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._answers_changed.wait()

    def _removal(self) -> RemovalProgress:
        return self._watch.removal(self._draining_since_sequence)

    def _removal_changed(self) -> None:
        sent_s, order = self._watch.drain_deadline_s(self._draining_since_sequence), self._standing.order
        if sent_s is not None and order is not None and sent_s != self._pool_deadline_s:
            self._pool_deadline_s = sent_s
            if self._default_since_s is not None:
                until_s = self._default_since_s + self._default_deadline_s()
                log.info("drain.deadline", deadline_s=self._default_deadline_s())
                self._following.set_drain_order(replace(order, deadline_s=until_s))
        self._drains.notify()


def _boot_id(number: int) -> str:
    """A boot id unique across engine processes and agents."""
    return f"{number}-{secrets.token_hex(8)}"


def startup_line(listening: BoundPorts, config: AgentConfig) -> dict[str, object]:
    """Actual addresses, for port 0."""
    http, scheme = config.http, "http" if config.tls is None else "https"
    return {
        "http_port": listening.http_port,
        "grpc_port": listening.grpc_port,
        "http": f"{scheme}://{ListenAddress(http.host, listening.http_port)}",
    }


def _api_key(path: str) -> ApiKey:
    """Key of the engine, following its file; ``AgentConfigError`` if unusable."""
    if not path:
        return lambda: ""
    try:
        return ApiKeyFile(Path(path))
    except (OSError, ValueError) as error:
        reason = error.strerror or error if isinstance(error, OSError) else error
        raise AgentConfigError(f"--engine-api-key-file: {path}: {reason}") from error
