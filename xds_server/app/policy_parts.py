"""Parts that read, version and serve policies: feed, history, canaries and reconciler."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from policies.engine_tls import SecretError
from policies.findings import PolicyError
from policies.model import PolicySet
from policies.pool import EnginePool
from policies.route import ModelRoute
from xds_server.app.adapters import SignalsAdapter
from xds_server.app.operator_parts import OperatorParts
from xds_server.app.policy_feed import FilesFeed, PolicyFeed
from xds_server.app.proxy_parts import ProxyParts
from xds_server.app.server_events import ServerEvents
from xds_server.engine_health.adapter_loader import AdapterLoader
from xds_server.engine_health.adapter_plan import Situation
from xds_server.metrics.metric_registry import Metrics
from xds_server.model.policy_state import ServingPolicies
from xds_server.observe.tracing.tracing import Tracing
from xds_server.reconcile.reconciler import Reconciler, ReconcilerOptions
from xds_server.rollout.canary_controller import CanaryController
from xds_server.rollout.history.version_archive import FOLDER, VersionArchive
from xds_server.rollout.last_good import LastGoodStore
from xds_server.rollout.policy_file_source import PolicyFiles
from xds_server.rollout.policy_versions import PolicyVersions
from xds_server.serve_config import ServeConfig


def policy_feed(config: ServeConfig, secret_error: SecretError) -> PolicyFeed:
    """The feed from files, or from a cluster, where ``secret_error`` validates secrets per object."""
    if config.kubernetes:
        # Not needed to read files.
        from xds_server.app.cluster_feed import ClusterFeed  # noqa: PLC0415

        return ClusterFeed(config, secret_error)
    return FilesFeed(PolicyFiles(config.policies, settle_s=config.settle_s, poll_s=config.poll_s))


def _situation(reconciler: Reconciler) -> Situation | None:
    """The latest round, as the adapters of engines are judged by; None before the first."""
    built = reconciler.built
    return None if built is None else Situation(built.inputs.policies, built.inputs.fleet, built.decisions)


def _no_errors(_policies: PolicySet) -> tuple[PolicyError, ...]:
    """No-op: the cluster feed validates objects individually, so that one does not block the others."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyParts:
    """Everything from policy files to snapshots."""

    feed: PolicyFeed
    reconciler: Reconciler
    archive: VersionArchive
    canaries: CanaryController
    versions: PolicyVersions
    last_good: LastGoodStore | None
    tracing: Tracing
    adapters: AdapterLoader

    @classmethod
    def build(
        cls,
        config: ServeConfig,
        metrics: Metrics,
        events: ServerEvents,
        *,
        proxies: ProxyParts,
        operators: OperatorParts,
    ) -> Self:
        """Build the parts on those the reconciler publishes to and reads from."""
        secrets, tracing = proxies.secrets, operators.tracing
        feed = policy_feed(config, secrets.error)
        reconciler = Reconciler(
            proxies.connected,
            metrics,
            signals=SignalsAdapter(proxies.telemetry, operators.orders, secrets.certificates),
            peers=feed,
            options=ReconcilerOptions(allow_shrink=config.allow_shrink, first_reports_s=config.first_reports_s),
            on_adopted=events.policies_adopted,
            on_round=events.round_published,
        )
        archive = VersionArchive(
            config.state_dir / FOLDER if config.state_dir else None, disk=operators.write_failures
        )
        canaries = CanaryController(reconciler, proxies.publisher, proxies.telemetry.traffic_store)
        return cls(
            feed=feed,
            reconciler=reconciler,
            archive=archive,
            canaries=canaries,
            versions=PolicyVersions(
                reconciler,
                archive,
                source=feed.source,
                canaries=canaries,
                tell=operators.ledger.record,
                flaws=_no_errors if config.kubernetes else secrets.errors,
                ordered=tracing.offered,
            ),
            last_good=LastGoodStore(config.state_dir) if config.state_dir else None,
            tracing=tracing,
            adapters=AdapterLoader(
                lambda: _situation(reconciler),
                leads=feed.leads,
                count=lambda result: metrics.adapter_loads.labels(result=result).inc(),
                secrets=secrets.engine_credentials,
                api_keys=secrets.api_keys,
            ),
        )

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Run the parts in this task group; the feed runs with the parts it reports to."""
        tasks.create_task(self._follow_feed(), name="policies")
        tasks.create_task(self.reconciler.run(), name="reconcile")
        tasks.create_task(self.archive.run(), name="history")
        tasks.create_task(self.versions.run(), name="changes")
        tasks.create_task(self.adapters.run(), name="adapters")

    async def _follow_feed(self) -> None:
        async with contextlib.aclosing(self.feed.states()) as states:
            async for state in states:
                self.tracing.offered(state.digest)
                self.versions.offer(state)

    def pools(self) -> Mapping[str, EnginePool]:
        """Pools of the served policies."""
        serving = self.reconciler.serving
        return {} if serving is None else serving.policies.pools

    def routes(self) -> Mapping[str, ModelRoute]:
        """Routes of the served policies."""
        serving = self.reconciler.serving
        return {} if serving is None else serving.policies.routes

    def on_adopted(self, serving: ServingPolicies) -> None:
        """Add these policies to the history."""
        self.versions.on_adopted(serving)
        self.tracing.adopted(serving.digest, self.archive.newest)

    def secret_handlers(self) -> tuple[Callable[[], None], ...]:
        """Handlers for changed secrets."""
        return (
            self.versions.reoffer,
            self.feed.on_secrets_changed,
            self.reconciler.request_round,
            self.reconciler.worth_keeping.set,
        )
