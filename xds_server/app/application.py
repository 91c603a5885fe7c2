"""Composition root: runs every part of the control plane in one ``TaskGroup``.

Four builders create the parts for policies, proxies, engines and operators; the admin port serves all of them.
Policies, reports and addresses flow into the reconciler; snapshots flow to the publisher. Shutdown is
cancellation. Any exception that escapes a task ends the process: Envoys keep their configuration, and a half-dead
control plane would look merely slow.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import structlog

from engine.address import ListenAddress
from xds_server.app.admin_port import AdminPort
from xds_server.app.engine_parts import EngineParts
from xds_server.app.operator_parts import OperatorParts
from xds_server.app.persistence import persist, restore
from xds_server.app.policy_feed import Outlet, ServerContext
from xds_server.app.policy_parts import PolicyParts
from xds_server.app.proxy_parts import ProxyParts
from xds_server.app.server_events import ServerEvents
from xds_server.app.startup_wait import report_startup_wait
from xds_server.app.usage_persistence import keep_usage, restore_usage
from xds_server.auth.peer_budget import DISCOVERY_CPU
from xds_server.auth.stream_limits import PeerPacer, StreamLimits
from xds_server.metrics.metric_registry import Metrics
from xds_server.model.policy_state import ServingPolicies
from xds_server.model.snapshot import Snapshot
from xds_server.model.view import View
from xds_server.publish.free_port import check_port_free
from xds_server.publish.grpc_ads import GrpcAdsServer
from xds_server.publish.h2_ads import H2AdsServer
from xds_server.reconcile.pipeline import BuildResult
from xds_server.serve_config import ConfigError, ServeConfig
from xds_server.state.write_failures import WriteFailures
from xds_server.telemetry.traffic_store import TrafficStore


class StopError(Exception):
    """Ends the task group normally."""


async def wait_for_stop(stop: asyncio.Event) -> None:
    """Raise ``StopError`` when ``stop`` is set."""
    await stop.wait()
    raise StopError


@contextlib.contextmanager
def stop_on_signals(stop: asyncio.Event) -> Iterator[None]:
    """Set ``stop`` on SIGTERM and SIGINT within this context."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def first_config_error(errors: BaseExceptionGroup[ConfigError]) -> ConfigError:
    """First error in a nested exception group."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, ConfigError) else ConfigError(str(error))


FILE_THREADS: Final = 2
"""Threads for files and name lookups."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundAddresses:
    """Addresses of the open ports."""

    xds: ListenAddress
    admin: ListenAddress


async def serve(
    config: ServeConfig,
    on_listening: Callable[[BoundAddresses], None] = lambda _: None,
    outlets: Sequence[Outlet] = (),
    *,
    on_waiting: Callable[[str], None] = lambda _: None,
) -> None:
    """Run the control plane until SIGTERM or SIGINT; calls ``on_listening`` when proxies can connect.

    ``on_waiting`` gets a line for each wait before that. ``outlets`` receive every decision, as proxies do. Raises
    ``ConfigError`` for an invalid setting.
    """
    # By default up to 32 threads, each with memory of its own. Two: files, and a name server that does not answer.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(FILE_THREADS, "files"))
    server = ControlPlane(config, outlets)
    stop = asyncio.Event()
    wrong: ConfigError | None = None
    with stop_on_signals(stop):
        try:
            await server.run(stop, on_listening, on_waiting)
        except* StopError:
            _log.info("serve.stopped")
        except* ConfigError as errors:
            wrong = first_config_error(errors)
    if wrong is not None:
        # Show operators one sentence, not a task tree. Raise it outside: early versions of Python 3.11 wrap
        # exceptions raised in ``except*`` in a group.
        raise wrong from None


class ControlPlane:
    """Composition root: builds the parts, connects their events, runs them in one task group."""

    def __init__(self, config: ServeConfig, outlets: Sequence[Outlet] = ()) -> None:
        """Raises ``ConfigError`` for an invalid setting."""
        self.config = config
        self.outlets = outlets
        self.metrics = Metrics()
        # Distinguishes this process from its predecessor, which may have had the same process id.
        epoch = f"{os.getpid():x}-{time.time_ns():x}"
        events, traffic_store = ServerEvents(), TrafficStore()
        self.operators = OperatorParts.build(
            config,
            events,
            write_failures=WriteFailures(self.metrics.store_failures.inc),
            began_at_s=traffic_store.began_at_s,
        )
        self.proxies = ProxyParts.build(
            config,
            self.metrics,
            events,
            epoch=epoch,
            traffic_store=traffic_store,
            change_tracer=self.operators.tracing.change_tracer,
        )
        self.engines = EngineParts.build(
            config,
            self.metrics,
            events,
            epoch=epoch,
            auth=self.proxies.auth,
            acked_versions=self.proxies.publisher.acked_versions,
            secrets=self.proxies.secrets.engine_credentials,
            api_keys=self.proxies.secrets.api_keys,
        )
        self.policies = PolicyParts.build(
            config, self.metrics, events, proxies=self.proxies, operators=self.operators
        )
        self.admin = AdminPort.build(
            config,
            self.metrics,
            policies=self.policies,
            proxies=self.proxies,
            engines=self.engines,
            operators=self.operators,
        )
        self._connect(events)

    def _connect(self, events: ServerEvents) -> None:
        """Connect cyclic dependencies: proxies query the reconciler, and events reach their handlers."""
        reconciler = self.policies.reconciler
        self.proxies.views.follow(reconciler, self.policies.canaries)
        self.proxies.secrets.follow(reconciler)
        events.round_requested.add(reconciler.request_round)
        events.proxies_changed.add(reconciler.proxies_changed)
        events.refusals_changed.add(reconciler.worth_keeping.set)
        events.ack.add(self.engines.drain.on_ack)
        events.agent_report.add(self.engines.drain.on_report, reconciler.on_report)
        events.totals.add(self.proxies.telemetry.record_totals)
        events.probe_report.add(reconciler.on_report)
        events.coverage_changed.add(self._on_coverage_changed)
        events.addresses_changed.add(self._on_addresses_changed)
        events.policies_adopted.add(self.policies.on_adopted, self._on_policies_adopted)
        events.round_published.add(self._on_round_published)

    async def run(
        self,
        stop: asyncio.Event,
        on_listening: Callable[[BoundAddresses], None],
        on_waiting: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Serve until ``stop`` is set, which raises ``StopError``; ``on_listening`` is called when proxies can
        connect.
        """
        config = self.config
        policies, proxies, engines, operators = self.policies, self.proxies, self.engines, self.operators
        if config.insecure:
            _log.warning("serve.insecure", reason="unauthenticated plaintext; see docs/security.md")
        check_port_free(config.listen)
        operators.orders.restore()
        policies.versions.restore()
        usage = proxies.telemetry.traffic_store.tenants.usage
        stored = (proxies.publisher, policies.reconciler, proxies.secrets, engines.resolver)
        if policies.last_good is not None:
            restore(policies.last_good, *stored)
            restore_usage(policies.last_good.path.parent, usage)
        context = ServerContext(
            reconciler=policies.reconciler,
            publisher=proxies.publisher,
            connected=proxies.connected,
            ledger=operators.ledger,
            conditions=self.admin.backend.recent_conditions,
        )
        async with self.admin.server as admin, operators.tracing, asyncio.TaskGroup() as tasks:
            tasks.create_task(wait_for_stop(stop), name="signals")
            proxies.start(tasks, on_other_keys=engines.agents.renew, on_other_secrets=policies.secret_handlers())
            self.admin.start(tasks)
            engines.start(tasks)
            policies.start(tasks)
            tasks.create_task(policies.feed.run(context), name="source")
            for outlet in self.outlets:
                tasks.create_task(outlet.run(context, policies.feed.pods), name="outlet")
            operators.start(tasks)
            if policies.last_good is not None:
                kept = persist(policies.last_good, *stored, disk=operators.write_failures)
                tasks.create_task(kept, name="store")
                folder, disk = policies.last_good.path.parent, operators.write_failures
                tasks.create_task(keep_usage(folder, usage, disk), name="usage")
            admin_address = ListenAddress(config.admin.host, admin.port)
            _log.info(
                "serve.started",
                admin=str(admin_address),
                policies=[str(path) for path in config.policies] or "kubernetes",
            )
            # Proxies that reach an open port without configuration delete theirs.
            sources = [str(path) for path in config.policies] or ["Kubernetes"]
            await report_startup_wait(policies.reconciler, sources, config.listen, on_waiting)
            tasks.create_task(self._transport(admin_address, on_listening), name="transport")

    async def _transport(self, admin: ListenAddress, on_listening: Callable[[BoundAddresses], None]) -> None:
        listen, proxies = self.config.listen, self.proxies
        limits = StreamLimits(
            pacer=PeerPacer(
                DISCOVERY_CPU,
                "discovery",
                self.metrics.peer_waits.labels(signal="discovery").inc,
                proxies.reached,
                proxies.host_time,
            ),
            memory=proxies.memory,
            reached=proxies.reached,
        )
        on_flaw = self.metrics.count_stream_flaw
        transport: GrpcAdsServer | H2AdsServer
        if self.config.transport == "h2":
            transport = H2AdsServer(
                proxies.publisher,
                host=listen.host,
                port=listen.port,
                tls=proxies.auth.h2_context(),
                services=proxies.telemetry.services(),
                on_flaw=on_flaw,
                limits=limits,
            )
        else:
            transport = GrpcAdsServer(
                proxies.publisher,
                host=listen.host,
                port=listen.port,
                credentials=proxies.auth.server_credentials(),
                handlers=proxies.telemetry.handlers(),
                on_flaw=on_flaw,
                limits=limits,
            )
        try:
            port = await transport.start()
        except OSError as error:
            raise ConfigError(f"--listen: {error}") from error
        try:
            self.admin.backend.listening = True
            listening = BoundAddresses(xds=ListenAddress(listen.host, port), admin=admin)
            _log.info("serve.listening", xds=str(listening.xds), admin=str(admin), transport=self.config.transport)
            on_listening(listening)
            await transport.run()
        finally:
            self.admin.backend.listening = False
            proxies.telemetry.stop()
            await transport.stop()

    # -- events with several handlers ----------------------------------------------------------------------

    def _on_policies_adopted(self, serving: ServingPolicies) -> None:
        self.engines.watch(serving.policies)
        self.proxies.telemetry.watch(serving.policies, self.engines.resolver.addresses)

    def _on_addresses_changed(self) -> None:
        addresses, serving = self.engines.resolver.addresses, self.policies.reconciler.serving
        self.policies.reconciler.resolve(addresses)
        if serving is not None:
            self.proxies.telemetry.watch(serving.policies, addresses)

    def _on_coverage_changed(self) -> None:
        serving = self.policies.reconciler.serving
        if serving is not None:
            self.engines.probe_uncovered(serving.policies)

    def _on_round_published(self, built: BuildResult, snapshots: Mapping[View, Snapshot]) -> None:
        inputs, decisions = built.inputs, built.decisions
        reconciler, telemetry = self.policies.reconciler, self.proxies.telemetry
        self.proxies.eject_latency.on_round(decisions, inputs.fleet, inputs.nodes, reconciler.news_s)
        self.operators.ledger.observe(
            inputs.policies,
            inputs.fleet,
            decisions,
            telemetry.lost,
            failed_requests=telemetry.traffic_store.failed_requests,
        )
        self.operators.tracing.round(built, snapshots, reconciler.news_s)
        if reconciler.serving is not None:
            self.operators.record(built, reconciler.serving.texts)
        if self.engines.summary is not None:
            self.engines.summary.publish(inputs.policies, inputs.fleet, decisions, inputs.now_s)
        telemetry.connected(self.proxies.connected.envoys())
        self.engines.hurry_probes(decisions)
        self.engines.drain.on_published(decisions, snapshots)
