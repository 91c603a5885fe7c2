"""The control plane as one process: every part is made here, joined here, and run in one ``TaskGroup``.

The parts know nothing of each other. Policies, reports and addresses flow into the reconciler; snapshots flow to
the publisher; the transport and the admin port only ask. Cancellation is the shutdown path, and an exception
that leaves any task takes the process down: Envoys keep what they have, and a half-dead control plane would
only look like a slow one.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

import structlog

from engine.address import ListenAddress
from engine.report import EngineReport
from policies.engine_tls import SecretError
from xds_server.admin.admin_server import AdminServer
from xds_server.admin.published_config import PublishedConfig
from xds_server.admin.server_backend import ServerBackend
from xds_server.app.adapters import PublisherAdapter, SignalsAdapter
from xds_server.app.persistence import persist, restore
from xds_server.app.policy_feed import FilesFeed, Outlet, PolicyFeed, ServerContext
from xds_server.app.region_summary import SummaryServer
from xds_server.auth.server_auth import ServerAuth
from xds_server.decide.decisions import Decisions, Health
from xds_server.diagnosis.file_problems import FileProblems
from xds_server.engine_health.agent_dialer import AgentDialer
from xds_server.engine_health.agent_target import AgentCredentials
from xds_server.engine_health.engine_prober import Prober
from xds_server.engine_health.resolver import Resolver, host_names
from xds_server.ledger import decision_recording
from xds_server.ledger.decision_recording import DecisionRecorder, RecordedInputs
from xds_server.ledger.jsonl_writer import JsonlWriter, tail
from xds_server.ledger.ledger import MAX_BYTES, ledger_from
from xds_server.ledger.operator_orders import Orders
from xds_server.metrics import Metrics
from xds_server.model.policy_state import ServingPolicies
from xds_server.model.snapshot import Snapshot
from xds_server.model.type_urls import ENDPOINT
from xds_server.model.view import View
from xds_server.observe.eject_latency import EjectLatency
from xds_server.observe.proxy_observer import NotifyingObserver
from xds_server.observe.tracing.tracing import Tracing
from xds_server.publish import Nack, Publisher
from xds_server.publish.drain_tracker import DrainTracker
from xds_server.publish.free_port import check_port_free
from xds_server.publish.grpc_ads import GrpcAdsServer
from xds_server.publish.nack_log import NackLog
from xds_server.reconcile.pipeline import BuildResult
from xds_server.reconcile.reconciler import Reconciler
from xds_server.rollout.canary_controller import CanaryController
from xds_server.rollout.history.version_archive import FOLDER, VersionArchive
from xds_server.rollout.last_good import LastGoodStore
from xds_server.rollout.policy_file_source import PolicyFiles
from xds_server.rollout.policy_versions import PolicyVersions
from xds_server.secrets.distribution import SecretDistributor
from xds_server.serve_config import ConfigError, ServeConfig
from xds_server.state.write_failures import WriteFailures
from xds_server.telemetry import Telemetry
from xds_server.xds import NodeInfo


def recorded_inputs(built: BuildResult, texts: Mapping[str, str], unix_s: float) -> RecordedInputs:
    """What this round was given; ``texts`` are the policies that it served."""
    return RecordedInputs(
        now_s=built.inputs.now_s,
        unix_s=unix_s,
        texts=texts,
        fleet=built.inputs.fleet,
        proxies=built.proxies,
        proxies_by_role=built.inputs.proxies_by_role,
        calling_zones=built.calling_zones,
        orders=built.inputs.orders,
    )


class StopError(Exception):
    """Ends the task group in good order."""


async def wait_for_stop(stop: asyncio.Event) -> None:
    """Raise ``StopError`` once it is time."""
    await stop.wait()
    raise StopError


@contextlib.contextmanager
def stop_on_signals(stop: asyncio.Event) -> Iterator[None]:
    """Within it SIGTERM and SIGINT set ``stop``."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def first_config_error(errors: BaseExceptionGroup[ConfigError]) -> ConfigError:
    """The first error of a group of groups."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, ConfigError) else ConfigError(str(error))


def policy_feed(config: ServeConfig, secret_error: SecretError) -> PolicyFeed:
    """The feed from files, or from a cluster, where ``secret_error`` judges what single objects name."""
    if config.kubernetes:
        # Who serves from files needs nothing of it.
        from xds_server.app.cluster_feed import ClusterFeed  # noqa: PLC0415

        return ClusterFeed(config, secret_error)
    return FilesFeed(PolicyFiles(config.policies, settle_s=config.settle_s, poll_s=config.poll_s))


NOTIFY_WITHIN_S: Final = 0.005
"""A push brings one confirmation per proxy; what agents are told of them is added up this long."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundAddresses:
    """The addresses of a server whose ports are open."""

    xds: ListenAddress
    admin: ListenAddress


async def serve(
    config: ServeConfig,
    on_listening: Callable[[BoundAddresses], None] = lambda _: None,
    outlets: Sequence[Outlet] = (),
) -> None:
    """Run the control plane until SIGTERM or SIGINT; ``on_listening`` is called when proxies can connect.

    ``outlets`` are told what is decided, as proxies are. Raises ``ConfigError`` when a setting turns out not to
    work (a port that is taken, say).
    """
    server = _Server(config, outlets)
    stop = asyncio.Event()
    wrong: ConfigError | None = None
    with stop_on_signals(stop):
        try:
            await server.run(stop, on_listening)
        except* StopError:
            _log.info("serve.stopped")
        except* ConfigError as errors:
            wrong = first_config_error(errors)
    if wrong is not None:
        # One sentence for the operator, not a tree of tasks; raised out here, for early Pythons 3.11 make a group
        # of whatever is raised in an ``except*``.
        raise wrong from None


class _Server:
    def __init__(self, config: ServeConfig, outlets: Sequence[Outlet]) -> None:
        self._config = config
        self._outlets = outlets
        self._metrics = Metrics()
        self._departures = EjectLatency(self._metrics, self._began_at_s)
        self._tracing = Tracing(config.otlp, self._began_at_s)
        self._store = LastGoodStore(config.state_dir) if config.state_dir else None
        self._disk = WriteFailures(self._metrics.store_failures.inc)
        epoch = f"{os.getpid():x}-{time.time_ns():x}"
        self._guard = ServerAuth(config)
        self._door = self._guard.admin_auth(config)
        self._refusals = NackLog()
        self._publisher = Publisher(
            view_of=self._view_of,
            snapshot_for=self._snapshot_for,
            observer=NotifyingObserver(
                self._metrics,
                self._proxies_changed,
                self._refused,
                self._confirmed,
                self._departures,
                following=self._tracing.change_tracer,
            ),
            epoch=epoch,
            identifier="switchgear",
        )
        self._lines = JsonlWriter(config.ledger, MAX_BYTES) if config.ledger else None
        self._ledger = ledger_from(self._lines, tail(config.ledger) if config.ledger else ())
        self._ledger.listener = self._tracing.event
        self._recording = JsonlWriter(config.record, decision_recording.MAX_BYTES) if config.record else None
        self._recorder = DecisionRecorder(self._recording) if self._recording else None
        self._orders = Orders(config.state_dir, on_change=self._news, tell=self._ledger.record, disk=self._disk)
        self._connected = PublisherAdapter(self._publisher)
        self._telemetry = Telemetry(self._metrics, on_news=self._news, speaks_for=self._connected.speaks_for)
        self._entrusted = SecretDistributor(
            config,
            lambda: self._reconciler.serving,
            self._connected.nodes,
            lambda: self._reconciler.pending_policies,
        )
        self._feed = policy_feed(config, self._entrusted.error)
        self._reconciler = Reconciler(
            self._connected,
            self._metrics,
            signals=SignalsAdapter(self._telemetry, self._orders, self._entrusted.certificates),
            peers=self._feed,
            allow_shrink=config.allow_shrink,
            first_reports_s=config.first_reports_s,
            on_adopted=self._adopted,
            on_round=self._published,
        )
        self._archive = VersionArchive(config.state_dir / FOLDER if config.state_dir else None, disk=self._disk)
        self._canaries = CanaryController(self._reconciler, self._publisher, self._telemetry.traffic_store)
        self._changing = PolicyVersions(
            self._reconciler,
            self._archive,
            source=self._feed.source,
            canaries=self._canaries,
            tell=self._ledger.record,
            # The objects of a cluster are judged one by one, so that one stops no other.
            flaws=(lambda _: ()) if config.kubernetes else self._entrusted.errors,
            ordered=self._tracing.offered,
        )
        self._resolver = Resolver(self._resolved, refresh_s=config.resolve_s)
        self._prober = Prober(
            self._reconciler.on_report,
            on_probe=self._metrics.count_probe,
            secrets=self._entrusted.engine_credentials,
        )
        self._agents = AgentDialer(
            self._heard,
            watcher=epoch,
            security=AgentCredentials(
                current=self._guard.channel_credentials,
                name=config.agent_name,
                plain_pools=frozenset(config.plaintext_agents),
            ),
            on_error=self._metrics.count_dropped_report,
            on_coverage=self._covered,
        )
        self._draining = DrainTracker()
        self._summary = (
            None
            if config.summary is None
            else SummaryServer(config.summary, config.region, *self._guard.summary_credentials())
        )
        self._telling: asyncio.TimerHandle | None = None
        self._troubles = FileProblems(
            (self._guard.file_problems, self._entrusted.file_problems, self._disk.file_problems)
        )
        self._facts = ServerBackend(
            self._reconciler,
            self._publisher,
            agents=self._agents.agents,
            gpu=self._agents.gpu,
            ledger=self._ledger,
            orders=self._orders,
            source=self._feed.source,
            lost_s=lambda: self._feed.lost_s,
            troubles=self._troubles.current,
            refusals=self._refusals,
            canary=lambda: asdict(self._changing.canary()),
        )
        told_by = (self._guard, self._door, self._feed, self._facts, self._telemetry, self._departures)
        for teller in (*told_by, self._entrusted):
            self._metrics.observe(teller.families)
        self._metrics.observe(self._tracing.families)

    async def run(self, stop: asyncio.Event, on_listening: Callable[[BoundAddresses], None]) -> None:
        config = self._config
        if config.insecure:
            _log.warning("serve.insecure", reason="plain text for everybody who can connect; see docs/security.md")
        check_port_free(config.listen)
        self._orders.restore()
        self._changing.restore()
        parts = (self._publisher, self._reconciler, self._entrusted, self._resolver)
        if self._store is not None:
            restore(self._store, *parts)
        around = ServerContext(
            reconciler=self._reconciler, publisher=self._publisher, connected=self._connected, ledger=self._ledger
        )
        served = AdminServer(
            config.admin,
            self._facts,
            self._metrics,
            door=self._door,
            tls=self._guard.ssl_context(),
            changer=self._changing,
            inside=PublishedConfig(
                self._publisher,
                listen=str(config.listen),
                state_dir=config.state_dir,
                pools=lambda: {} if (now := self._reconciler.serving) is None else now.policies.pools,
                view_expected=self._guard.view_expected,
                peek=self._reconciler.peek,
            ),
        )
        async with served as admin, self._tracing, asyncio.TaskGroup() as tasks:
            tasks.create_task(wait_for_stop(stop), name="signals")
            guarding = self._guard.run(on_rules=self._publisher.reauthorize, on_keys=self._agents.renew)
            tasks.create_task(guarding, name="guard")
            tasks.create_task(self._troubles.run(), name="troubles")
            again = (self._changing.reoffer, self._feed.on_secrets_changed, self._news)
            tasks.create_task(self._entrusted.run(*again, self._reconciler.worth_keeping.set), name="secrets")
            tasks.create_task(self._follow_policies(), name="policies")
            tasks.create_task(self._feed.run(around), name="source")
            for outlet in self._outlets:
                tasks.create_task(outlet.run(around, lambda: self._feed.pods), name="outlet")
            tasks.create_task(self._resolver.run(), name="resolver")
            tasks.create_task(self._agents.run(), name="agents")
            tasks.create_task(self._prober.run(), name="prober")
            tasks.create_task(self._reconciler.run(), name="reconcile")
            tasks.create_task(self._orders.run(), name="orders")
            tasks.create_task(self._archive.run(), name="history")
            tasks.create_task(self._changing.run(), name="changes")
            for name, lines in (("ledger", self._lines), ("recording", self._recording)):
                if lines is not None:
                    tasks.create_task(lines.run(), name=name)
            if self._summary is not None:
                tasks.create_task(self._summary.run(), name="summary")
            if self._store is not None:
                kept = persist(self._store, *parts, disk=self._disk)
                tasks.create_task(kept, name="store")
            admin_address = ListenAddress(config.admin.host, admin.port)
            policies = [str(path) for path in config.policies] or "kubernetes"
            _log.info("serve.started", admin=str(admin_address), policies=policies)
            # Proxies that find an open port and no configuration remove what they have.
            await self._reconciler.ready.wait()
            tasks.create_task(self._transport(admin_address, on_listening), name="transport")

    async def _transport(self, admin: ListenAddress, on_listening: Callable[[BoundAddresses], None]) -> None:
        listen = self._config.listen
        transport = GrpcAdsServer(
            self._publisher,
            host=listen.host,
            port=listen.port,
            credentials=self._guard.server_credentials(),
            handlers=self._telemetry.handlers(),
            on_flaw=self._metrics.count_stream_flaw,
        )
        try:
            port = await transport.start()
        except OSError as error:
            raise ConfigError(f"--listen: {error}") from error
        try:
            self._facts.listening = True
            listening = BoundAddresses(xds=ListenAddress(listen.host, port), admin=admin)
            _log.info("serve.listening", xds=str(listening.xds), admin=str(admin))
            on_listening(listening)
            await transport.run()
        finally:
            self._facts.listening = False
            self._telemetry.stop()
            await transport.stop()

    async def _follow_policies(self) -> None:
        async with contextlib.aclosing(self._feed.states()) as states:
            async for state in states:
                self._tracing.offered(state.digest)
                self._changing.offer(state)

    # -- joints --------------------------------------------------------------------------------------------

    def _view_of(self, node: NodeInfo) -> View:
        view = self._guard.view_of(node)
        return replace(view, canary=True) if self._canaries.has(node.id) else view

    def _snapshot_for(self, view: object) -> Snapshot:
        return self._reconciler.snapshot_for(view) if isinstance(view, View) else Snapshot()

    def _proxies_changed(self) -> None:
        self._reconciler.proxies_changed()

    def _news(self) -> None:
        self._reconciler.request_round()

    def _began_at_s(self, pool: str, engine: str) -> float | None:
        return self._telemetry.traffic_store.began_at_s(pool, engine)

    def _refused(self, nack: Nack) -> None:
        self._refusals.note(nack)
        self._reconciler.worth_keeping.set()

    def _resolved(self) -> None:
        self._reconciler.resolve(self._resolver.addresses)
        if self._reconciler.serving is not None:
            self._telemetry.watch(self._reconciler.serving.policies, self._resolver.addresses)

    def _adopted(self, serving: ServingPolicies) -> None:
        self._changing.on_adopted(serving)
        self._tracing.adopted(serving.digest, self._archive.newest)
        self._agents.watch(serving.policies)
        self._prober.watch(serving.policies, self._agents.covered)
        self._resolver.want(host_names(serving.policies))
        self._telemetry.watch(serving.policies, self._resolver.addresses)

    def _covered(self) -> None:
        if self._reconciler.serving is not None:
            self._prober.watch(self._reconciler.serving.policies, self._agents.covered)

    def _heard(self, report: EngineReport) -> None:
        """A report of an agent."""
        if self._draining.on_report(report):
            self._tell_soon()
        self._reconciler.on_report(report)

    def _published(self, decisions: Decisions, snapshots: Mapping[View, Snapshot]) -> None:
        if self._reconciler.built is not None:
            inputs = self._reconciler.built.inputs
            self._departures.on_round(decisions, inputs.fleet, inputs.nodes, self._reconciler.news_s)
            self._ledger.observe(
                inputs.policies,
                inputs.fleet,
                decisions,
                self._telemetry.lost,
                failed_requests=self._telemetry.traffic_store.failed_requests,
            )
            self._tracing.round(self._reconciler.built, snapshots, self._reconciler.news_s)
            self._record(self._reconciler.built)
            if self._summary is not None:
                self._summary.publish(inputs.policies, inputs.fleet, decisions, inputs.now_s)
        self._telemetry.connected(self._connected.envoys())
        self._prober.hurry(
            {key for key, decision in decisions.engines.items() if decision.health is not Health.HEALTHY}
        )
        if self._draining.engines:
            self._draining.on_published(decisions, snapshots)
            self._tell_soon()

    def _record(self, built: BuildResult) -> None:
        if self._recorder is not None and self._reconciler.serving is not None:
            self._recorder.record(recorded_inputs(built, self._reconciler.serving.texts, time.time()))

    def _confirmed(self, type_url: str) -> None:
        if type_url == ENDPOINT and self._draining.engines:
            self._tell_soon()

    def _tell_soon(self) -> None:
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(NOTIFY_WITHIN_S, self._tell)

    def _tell(self) -> None:
        """Tell the agents of draining engines how far they have left the proxies."""
        self._telling = None
        held = {key.pool: self._publisher.acked_versions(ENDPOINT, key.pool) for key in self._draining.engines}
        for key in self._draining.engines:
            progress = self._draining.progress(key, held[key.pool])
            if progress is not None:
                self._agents.send_drain_progress(key, progress)
