"""Admin port: answers, metrics and file problems of all parts."""

import asyncio
from dataclasses import dataclass
from typing import Self

from xds_server.admin.admin_server import AdminServer
from xds_server.admin.published_config import PublishedConfig
from xds_server.admin.server_backend import BackendSources, ServerBackend
from xds_server.admin.tap_stream import TapSource
from xds_server.app.engine_parts import EngineParts
from xds_server.app.operator_parts import OperatorParts
from xds_server.app.policy_parts import PolicyParts
from xds_server.app.proxy_parts import ProxyParts
from xds_server.diagnosis.file_problems import FileProblems
from xds_server.metrics.metric_registry import Metrics
from xds_server.serve_config import ServeConfig
from xds_server.telemetry.pool_recorder import PoolRecorder


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminPort:
    """Server of the admin port, with its data sources."""

    server: AdminServer
    backend: ServerBackend
    file_problems: FileProblems

    @classmethod
    def build(
        cls,
        config: ServeConfig,
        metrics: Metrics,
        *,
        policies: PolicyParts,
        proxies: ProxyParts,
        engines: EngineParts,
        operators: OperatorParts,
    ) -> Self:
        """Build the server; ``metrics`` exports the measurements of each part."""
        auth, secrets = proxies.auth, proxies.secrets
        admin_auth = auth.admin_auth(config)
        file_problems = FileProblems(
            (auth.file_problems, secrets.file_problems, operators.write_failures.file_problems)
        )
        backend = ServerBackend(
            policies.reconciler,
            proxies.publisher,
            BackendSources(
                agents=engines.agents.agents,
                gpu=engines.agents.gpu,
                ledger=operators.ledger,
                orders=operators.orders,
                policy_source=policies.feed.source,
                lost_s=policies.feed.lost_s,
                file_problems=file_problems.current,
                canary=policies.versions.canary,
                objectives=proxies.telemetry.objectives,
                tenants=proxies.telemetry.tenants,
                usage=proxies.telemetry.usage,
                token_ratios=proxies.telemetry.token_ratios,
                history=policies.versions.history,
                rejected=policies.feed.rejected,
                adapter_troubles=policies.adapters.load_failures,
                limits=lambda: (*proxies.reached.current(), *admin_auth.reached.current()),
                recorder=PoolRecorder(proxies.telemetry.traffic_store),
            ),
        )
        for measured in (
            auth,
            admin_auth,
            policies.feed,
            backend,
            proxies.telemetry,
            proxies.eject_latency,
            secrets,
            operators.tracing,
        ):
            metrics.observe(measured.families)
        published = PublishedConfig(
            proxies.publisher,
            listen=str(config.listen),
            state_dir=config.state_dir,
            pools=policies.pools,
            routes=policies.routes,
            view_expected=auth.view_expected,
            peek=policies.reconciler.peek,
        )
        server = AdminServer(
            config.admin,
            backend,
            metrics,
            door=admin_auth,
            tls=auth.ssl_context(),
            changer=policies.versions,
            inside=published,
            tap=TapSource(
                tap=proxies.telemetry.traffic_store.tap,
                pools=lambda: tuple(proxies.telemetry.traffic_store.directory.pools),
                sampling_ratio=lambda: min(proxies.telemetry.sampling.values(), default=1.0),
            ),
        )
        return cls(server=server, backend=backend, file_problems=file_problems)

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Track file problems, conditions and pools in this task group; the server itself is a context manager."""
        tasks.create_task(self.file_problems.run(), name="troubles")
        tasks.create_task(self.backend.condition_log.run(), name="conditions")
        tasks.create_task(self.backend.record_pools(), name="pool-history")
