"""Admin port: answers, metrics and file problems of all parts."""

import asyncio
from dataclasses import dataclass
from typing import Self

from xds_server.admin.admin_server import AdminServer
from xds_server.admin.published_config import PublishedConfig
from xds_server.admin.server_backend import BackendSources, ServerBackend
from xds_server.app.engine_parts import EngineParts
from xds_server.app.operator_parts import OperatorParts
from xds_server.app.policy_parts import PolicyParts
from xds_server.app.proxy_parts import ProxyParts
from xds_server.diagnosis.file_problems import FileProblems
from xds_server.metrics.metric_registry import Metrics
from xds_server.serve_config import ServeConfig


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
        )
        return cls(server=server, backend=backend, file_problems=file_problems)

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Track file problems in this task group; the server itself is a context manager."""
        tasks.create_task(self.file_problems.run(), name="troubles")
