"""Pools and their policies during an import, by their name in the source."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from istio.imports.policy_draft import NameAllocator, PolicyDraft, SourcedValue
from istio.imports.route_conditions import RouteConditions
from istio.imports.source_documents import SourceNode

_MODEL_NOTE = "not set there: set it here, or use --model {name}=MODEL"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """What was asked for at the command line, because the files do not say it.

    ``models`` is the model of a pool by the pool's name; ``listener_port`` is where Envoys will listen.
    """

    namespace: str | None = None
    listener_port: int = 10000
    models: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(slots=True)
class PolicyDrafts:
    """The drafts of an import: one pool for each key, at most one policy for each pool, routes in order."""

    options: ImportOptions
    pools: dict[str, PolicyDraft] = field(default_factory=dict)
    policies: dict[str, PolicyDraft] = field(default_factory=dict)
    routes: list[PolicyDraft] = field(default_factory=list)
    pool_names: NameAllocator = field(default_factory=NameAllocator)
    route_names: NameAllocator = field(default_factory=NameAllocator)
    _named: set[str] = field(default_factory=set)
    _ranks: dict[object, list[tuple[int, int, bool, bool]]] = field(default_factory=dict)

    def pool(self, key: str, like: str, node: SourceNode, *, base: str = "") -> PolicyDraft:
        """The pool of this key; a new one is named like ``like`` and is from ``node``.

        ``base``: a name whose model it has too, unless it has one of its own: that of a subset's host.
        """
        found = self.pools.get(key)
        if found is None:
            name = self.pool_names.allocate(like)
            found = self.pools[key] = PolicyDraft(kind="EnginePool", name=name, node=node)
            models = self.options.models
            self._named |= {name, base}
            if (model := models.get(name) or models.get(base)) is not None:
                found.put("model", SourcedValue(value=model, note="--model"))
        return found

    def unknown_models(self) -> tuple[str, ...]:
        """Pools that ``--model`` names and the files do not have."""
        return tuple(sorted(self.options.models.keys() - self._named))

    def policy(self, pool: PolicyDraft, node: SourceNode) -> PolicyDraft:
        """The policy of a pool, which is named as the pool is."""
        found = self.policies.get(pool.name)
        if found is None:
            found = self.policies[pool.name] = PolicyDraft(kind="ResiliencePolicy", name=pool.name, node=node)
            if found.name == "default":
                # That name would make it the policy of every pool.
                found.name = "default-pool"
            found.spec["pools"] = [SourcedValue(value=pool.name)]
        return found

    def add_route(self, route: PolicyDraft, conditions: RouteConditions) -> None:
        """Take up a route; it is listed where it will be tried before one that was tried first until now."""
        before = self._ranks.setdefault(conditions.port.value if conditions.port else None, [])
        if any(conditions.rank < rank for rank in before):
            route.node.change(
                "evaluated before less specific routes above it: the most specific route comes first"
            )
        before.append(conditions.rank)
        self.routes.append(route)

    def listener(self, route: PolicyDraft, port: SourcedValue | None = None) -> None:
        """Where the Envoys listen for a route: at ``port`` where it is known, else where the command line says."""
        route.put("listener.port", port or SourcedValue(value=self.options.listener_port, note="--listener-port"))

    def drafts(self) -> tuple[PolicyDraft, ...]:
        """All drafts, pools first; a pool without a model serves the model of its own name."""
        return tuple(self._in_order())

    def _in_order(self) -> Iterator[PolicyDraft]:
        for pool in self.pools.values():
            if pool.left_out:
                continue
            if "model" not in pool.spec:
                note = _MODEL_NOTE.format(name=pool.name)
                pool.spec = {"model": SourcedValue(value=pool.name, note=note), **pool.spec}
            else:
                pool.spec = {"model": pool.spec["model"], **pool.spec}
            yield pool
        yield from self.routes
        gone = {pool.name for pool in self.pools.values() if pool.left_out}
        for name, policy in self.policies.items():
            if len(policy.spec) > 1 and name not in gone:
                yield policy
