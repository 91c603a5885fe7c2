"""From policies, fleet and proxies to the snapshot of every view: the pure stages in order.

``decide`` -> ``translate`` per view -> ``assemble`` per view. What stays between two runs is only a cache: the
result is the same without it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from types import MappingProxyType
from typing import Any, Final

from policies.model import PolicySet
from xds_server.decide.decide import PreparedPolicies, decide, prepared_policies
from xds_server.decide.decision_memory import NO_MEMORY, DecisionMemory
from xds_server.decide.decisions import Decisions
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.model.fleet import EngineId, Fleet
from xds_server.model.memo import LastResult, Memo
from xds_server.model.order import Order
from xds_server.model.pool_traffic import NO_DEMAND, Proxy, TenantDemand
from xds_server.model.secret import UNKNOWN_CERTIFICATES, Certificates
from xds_server.model.snapshot import OwnResources, Snapshot
from xds_server.model.tenant_usage import NO_USAGE, TenantUsage
from xds_server.model.view import View
from xds_server.reconcile.assembler import Assembler
from xds_server.reconcile.proxy_index import ProxyIndex
from xds_server.translate.runtime_layers import proxy_runtime_resources
from xds_server.translate.tenant_parts import proxy_parts
from xds_server.translate.translated_resource import TranslatedResource, TypeGroup
from xds_server.translate.view_resources import translate_by_type
from xds_server.wire.encode import encode

REFERENCE_VIEW: Final = View()
"""Every pool and route, from no zone: always built, because it shows everything that can be served."""

MAX_STALE_VIEWS: Final = 64
"""Unused views before their cached results are dropped."""

_NOBODY: Final[Mapping[str, Proxy]] = MappingProxyType({})
_NO_NODES: Final[Mapping[str, View]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildInputs:
    """Inputs of snapshots; ``memory`` is that of the last round.

    ``nodes`` are the views of connected proxies by node id, ``views`` those to build; ``proxies_by_role`` and
    ``calling_zones`` also count briefly disconnected proxies. ``remote_proxies`` are proxies of other replicas:
    they share limits and are not served here; ``crowding`` are nodes that are served and share none.
    ``access_log_shares`` is the share of calls that a proxy reports.
    ``certificates`` are for connections to engines. ``usage`` is that of tenants with quotas for calendar periods,
    ``demand`` what tenants ask of each proxy.
    ``now_s`` is monotonic.
    """

    policies: PolicySet
    fleet: Fleet
    views: frozenset[View]
    proxies_by_role: Mapping[str, int]
    now_s: float
    calling_zones: frozenset[str] = frozenset()
    nodes: Mapping[str, View] = field(default_factory=lambda: _NO_NODES)
    crowding: Collection[str] = frozenset()
    remote_proxies: Mapping[str, Proxy] = field(default_factory=lambda: _NOBODY)
    orders: Mapping[EngineId, Order] = field(default_factory=dict)
    access_log_shares: Mapping[str, float] = field(default_factory=dict)
    certificates: Certificates = UNKNOWN_CERTIFICATES
    usage: TenantUsage = NO_USAGE
    demand: TenantDemand = NO_DEMAND
    memory: DecisionMemory = NO_MEMORY


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """The result for ``inputs``: decisions, a snapshot for each view, and the seconds of each stage.

    ``memory`` is for the next round. ``own`` are the runtime layer and the parts of quotas of each connected proxy
    that has its own, by node id. ``proxies`` and ``calling_zones`` are as given to ``decide``.
    """

    inputs: BuildInputs
    decisions: Decisions
    memory: DecisionMemory
    snapshots: Mapping[View, Snapshot]
    stages_s: Mapping[str, float]
    own: Mapping[str, OwnResources] = field(default_factory=dict)
    proxies: Mapping[str, Proxy] = field(default_factory=dict)
    calling_zones: frozenset[str] = frozenset()


class Pipeline:
    """Runs the stages and caches their results."""

    def __init__(self, encoder: Callable[[Any], bytes] = encode) -> None:
        """Start with nothing remembered; ``encoder`` writes the messages of the snapshots."""
        self._memo = Memo()
        self._made_for: frozenset[View] = frozenset()
        self._swept_for: PolicySet | None = None
        self._assembler = Assembler(encoder)
        self._index = ProxyIndex()
        self._prepared: LastResult[PreparedPolicies] = LastResult()

    def build(self, inputs: BuildInputs) -> BuildResult:
        """Decisions and snapshots of these inputs."""
        started_s = perf_counter()
        calling_zones = inputs.calling_zones.union(view.zone for view in self._wanted(inputs.views))
        proxies, kinds = self._index.proxies(inputs.nodes, inputs.crowding, inputs.remote_proxies)
        decisions, memory = decide(
            inputs.policies,
            inputs.fleet,
            inputs.memory,
            proxies=ConnectedProxies(
                by_node=proxies,
                by_role=inputs.proxies_by_role,
                calling_zones=calling_zones,
                kinds=kinds,
                demand=inputs.demand,
            ),
            now_s=inputs.now_s,
            orders=inputs.orders,
            usage=inputs.usage,
            prepared=self._prepared.of((inputs.policies,), lambda: prepared_policies(inputs.policies)),
        )
        decided_s = perf_counter()
        self._note(self._wanted(inputs.views), inputs)
        groups = {
            view: translate_by_type(
                inputs.policies,
                inputs.fleet,
                decisions,
                view,
                self._memo,
                certificates=inputs.certificates,
            )
            for view in self._wanted(inputs.views)
        }
        if inputs.policies is not self._swept_for:
            # Not every time: entries of unchanged pools are not looked up, and would be dropped.
            self._memo.sweep()
            self._made_for = self._wanted(inputs.views)
            self._assembler.retain(inputs.policies.pools)
            self._swept_for = inputs.policies
        translated_s = perf_counter()
        snapshots = {
            view: self._assembler.assemble_groups(view, found, self._memo) for view, found in groups.items()
        }
        own = self._own(inputs, decisions)
        return BuildResult(
            inputs=inputs,
            decisions=decisions,
            memory=memory,
            snapshots=MappingProxyType(snapshots),
            own=own,
            proxies=proxies,
            calling_zones=calling_zones,
            stages_s=MappingProxyType(
                {
                    "decide": decided_s - started_s,
                    "translate": translated_s - decided_s,
                    "assemble": perf_counter() - translated_s,
                }
            ),
        )

    def peek(self, built: BuildResult, view: View) -> Snapshot:
        """The snapshot of one more view, from the same inputs and decisions."""
        self._note(frozenset((view,)), built.inputs)
        groups = translate_by_type(
            built.inputs.policies,
            built.inputs.fleet,
            built.decisions,
            view,
            self._memo,
            certificates=built.inputs.certificates,
        )
        return self._assembler.assemble_groups(view, groups, self._memo)

    def _own(self, inputs: BuildInputs, decisions: Decisions) -> Mapping[str, OwnResources]:
        """The runtime layer of each proxy with a part of its own in any pool, and its parts of quotas."""
        layers = proxy_runtime_resources(
            inputs.policies,
            inputs.fleet,
            decisions,
            inputs.nodes,
            memo=self._memo,
            access_log_shares=inputs.access_log_shares,
        )
        parts = self._memo.identical(
            ("own parts",),
            (inputs.policies, *decisions.quota_parts.values()),
            lambda: proxy_parts(inputs.policies, decisions, self._memo),
        )
        return self._memo.identical(("own",), (layers, parts), lambda: self._own_resources(layers, parts))

    def _own_resources(
        self, layers: Mapping[str, TranslatedResource], parts: Mapping[str, TypeGroup]
    ) -> Mapping[str, OwnResources]:
        return MappingProxyType(
            {
                node: tuple(
                    map(
                        self._assembler.resource,
                        (*((layers[node],) if node in layers else ()), *parts.get(node, ())),
                    )
                )
                for node in {**layers, **parts}
            }
        )

    def _note(self, views: frozenset[View], inputs: BuildInputs) -> None:
        """Record the views built; drop the caches once there were many more than in use."""
        if views <= self._made_for:
            return
        self._made_for |= views
        if len(self._made_for) > MAX_STALE_VIEWS + 4 * (len(inputs.nodes) + len(inputs.views)):
            self._memo, self._made_for = Memo(), views

    @staticmethod
    def _wanted(views: Iterable[View]) -> frozenset[View]:
        return frozenset((REFERENCE_VIEW, *views))
