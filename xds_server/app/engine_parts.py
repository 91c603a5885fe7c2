"""Parts that watch engines: addresses, agents, probes, drains, and the summary for other regions."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

from policies.model import PolicySet
from xds_server.app.drain_notifier import AckedVersions, DrainNotifier
from xds_server.app.region_summary import SummaryServer
from xds_server.app.server_events import ServerEvents
from xds_server.auth.server_auth import ServerAuth
from xds_server.decide.decisions import Decisions, Health, PoolDecisions
from xds_server.engine_health.agent_dialer import AgentDialer
from xds_server.engine_health.agent_target import AgentCredentials
from xds_server.engine_health.engine_addresses import host_names
from xds_server.engine_health.engine_prober import Prober
from xds_server.engine_health.resolver import Resolver
from xds_server.metrics.metric_registry import Metrics
from xds_server.model.fleet import EngineId
from xds_server.model.secret import Secrets
from xds_server.serve_config import ServeConfig


class OutOfRotation:
    """Engines that are not in rotation; only pools with new decisions are looked at."""

    def __init__(self) -> None:
        self._by_pool: dict[str, tuple[PoolDecisions, tuple[EngineId, ...]]] = {}

    def of(self, decisions: Decisions) -> frozenset[EngineId]:
        """Engines that are out by these decisions."""
        known = self._by_pool
        self._by_pool = {
            name: before if (before := known.get(name)) is not None and before[0] is pool else (pool, _out(pool))
            for name, pool in decisions.pools.items()
        }
        return frozenset(key for _, out in self._by_pool.values() for key in out)


def _out(pool: PoolDecisions) -> tuple[EngineId, ...]:
    return tuple(key for key, decision in pool.engines.items() if decision.health is not Health.HEALTHY)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """Parts that communicate with engines and agents."""

    resolver: Resolver
    agents: AgentDialer
    prober: Prober
    drain: DrainNotifier
    summary: SummaryServer | None
    out: OutOfRotation = field(default_factory=OutOfRotation)

    @classmethod
    def build(
        cls,
        config: ServeConfig,
        metrics: Metrics,
        events: ServerEvents,
        *,
        epoch: str,
        auth: ServerAuth,
        acked_versions: AckedVersions,
        secrets: Callable[[], Secrets],
        api_keys: Callable[[], Mapping[str, str]],
    ) -> Self:
        """Build the parts; ``secrets``: credentials for engines, ``api_keys``: keys of their APIs."""
        agents = AgentDialer(
            events.agent_report,
            watcher=epoch,
            security=AgentCredentials(
                current=auth.channel_credentials,
                name=config.agent_name,
                plain_pools=frozenset(config.plaintext_agents),
            ),
            on_error=metrics.count_dropped_report,
            on_coverage=events.coverage_changed,
            on_totals=events.totals,
        )
        return cls(
            resolver=Resolver(events.addresses_changed, refresh_s=config.resolve_s),
            agents=agents,
            prober=Prober(
                events.probe_report,
                on_probe=metrics.count_probe,
                on_totals=events.totals,
                secrets=secrets,
                api_keys=api_keys,
            ),
            drain=DrainNotifier(acked_versions, agents.send_drain_progress),
            summary=None
            if config.summary is None
            else SummaryServer(config.summary, config.region, *auth.summary_credentials()),
        )

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Run the parts in this task group."""
        tasks.create_task(self.resolver.run(), name="resolver")
        tasks.create_task(self.agents.run(), name="agents")
        tasks.create_task(self.prober.run(), name="prober")
        if self.summary is not None:
            tasks.create_task(self.summary.run(), name="summary")

    def watch(self, policies: PolicySet) -> None:
        """Watch the engines of these policies."""
        self.agents.watch(policies)
        self.probe_uncovered(policies)
        self.resolver.want(host_names(policies))

    def probe_uncovered(self, policies: PolicySet) -> None:
        """Probe engines without a connected agent."""
        self.prober.watch(policies, self.agents.covered)

    def hurry_probes(self, decisions: Decisions) -> None:
        """Probe engines that are not in rotation more often."""
        self.prober.hurry(self.out.of(decisions))
