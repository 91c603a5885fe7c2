"""Compares two sets of policies: their fields, and what each would make proxies do.

Both go through the whole pipeline with all engines healthy and no traffic, so that only the policies differ.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import betterproto2

from policies.lints.lint_context import LintContext
from policies.lints.retry_lints import worst_load
from policies.model import PolicySet
from xds_server.model.fleet import Fleet, declared
from xds_server.model.view import View
from xds_server.reconcile.pipeline import REFERENCE_VIEW, BuildInputs, BuildResult, Pipeline
from xds_server.rollout.history.field_changes import FieldChange, field_changes
from xds_server.rollout.history.impact import Impact, ResourceEffect, resource_effects
from xds_server.translate.route_configuration import route_pools


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewEffects:
    """Changes for proxies of these views, which all get the same."""

    views: tuple[str, ...]
    proxies: int
    effects: tuple[ResourceEffect, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFigures:
    """A pool in numbers: engines, slots, ceiling (None: none); at worst, tries per request and relative load."""

    engines: int
    slots: float
    ceiling: int | None
    tries: int
    worst_load: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolChange:
    """A pool that differs; None: absent."""

    pool: str
    before: PoolFigures | None
    after: PoolFigures | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeScope:
    """The proxies and traffic affected; None where no server was asked."""

    pools: tuple[str, ...]
    routes: tuple[str, ...]
    proxies: tuple[int, int] | None = None
    traffic_percent: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDiff:
    """All differences."""

    fields: tuple[FieldChange, ...]
    views: tuple[ViewEffects, ...]
    pools: tuple[PoolChange, ...]
    blast: ChangeScope

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (self.fields or self.views or self.pools)

    @property
    def cold(self) -> int:
        """Resources whose change affects live traffic, each counted once."""
        return len(
            {(one.type, one.name) for view in self.views for one in view.effects if one.heat is Impact.COLD}
        )


def policy_diff(
    old: PolicySet,
    new: PolicySet,
    *,
    views: Mapping[View, int] | None = None,
    arrivals_per_s: Mapping[str, float] | None = None,
    addressed: Callable[[Fleet], Fleet] = lambda fleet: fleet,
) -> PolicyDiff:
    """Compare. ``views`` are those of connected proxies with the number of proxies; ``arrivals_per_s`` is their
    demand by pool. Without ``views``: a gateway in each zone with engines. ``addressed`` replaces host names by
    addresses."""
    wanted = dict(_assumed((old, new)) if views is None else views)
    before, after = _built(old, wanted, addressed), _built(new, wanted, addressed)
    changed = _by_effects(before, after, wanted)
    counts = {name: _figures(old, before, name) for name in old.pools}
    figures = {name: _figures(new, after, name) for name in new.pools}
    pools = tuple(
        PoolChange(pool=name, before=counts.get(name), after=figures.get(name))
        for name in sorted(counts.keys() | figures.keys())
        if counts.get(name) != figures.get(name)
    )
    fields = field_changes(old, new)
    blast = _blast(old, new, pools, changed if views is not None else (), wanted if views is not None else None)
    return PolicyDiff(
        fields=fields,
        views=changed,
        pools=pools,
        blast=_with_traffic(blast, arrivals_per_s),
    )


def _assumed(sets: Iterable[PolicySet]) -> Mapping[View, int]:
    zones = {end.zone for policies in sets for pool in policies.pools.values() for end in pool.spec.endpoints}
    return {View(zone=zone): 0 for zone in sorted(zones) or [""]}


def _built(policies: PolicySet, views: Mapping[View, int], addressed: Callable[[Fleet], Fleet]) -> BuildResult:
    by_role: dict[str, int] = {}
    for view, count in views.items():
        by_role[view.role] = by_role.get(view.role, 0) + count
    return Pipeline(comparable_bytes).build(
        BuildInputs(
            policies=policies,
            fleet=addressed(declared(policies)),
            views=frozenset(views),
            proxies_by_role={role: max(1, count) for role, count in by_role.items()} or {"gateway": 1},
            now_s=0.0,
        )
    )


def comparable_bytes(message: Any) -> bytes:
    """Bytes that are equal for equal messages; not the wire format, whose encoder takes 0.5 s to derive."""
    return repr(_content(message)).encode("utf-8", "surrogateescape")


def _content(value: Any) -> Any:
    if isinstance(value, betterproto2.Message):
        return type(value).__name__, [(name, _content(one)) for name, one in vars(value).items()]
    if isinstance(value, list):
        return [_content(one) for one in value]
    if isinstance(value, dict):
        return sorted((key, _content(one)) for key, one in value.items())
    return value


def _by_effects(before: BuildResult, after: BuildResult, views: Mapping[View, int]) -> tuple[ViewEffects, ...]:
    together: dict[tuple[ResourceEffect, ...], list[View]] = {}
    for view in sorted(views or {REFERENCE_VIEW: 0}, key=_name_of):
        found = resource_effects(before.snapshots[view], after.snapshots[view])
        if found:
            together.setdefault(found, []).append(view)
    return tuple(
        ViewEffects(
            views=tuple(map(_name_of, alike)), proxies=sum(views.get(view, 0) for view in alike), effects=found
        )
        for found, alike in together.items()
    )


def _name_of(view: View) -> str:
    pools = f" of {', '.join(sorted(view.pools))}" if view.pools else ""
    return f"{view.role} in {view.zone}{pools}" if view.zone else f"{view.role}{pools}"


def _figures(policies: PolicySet, built: BuildResult, pool: str) -> PoolFigures:
    advised = LintContext(
        policies=policies, name=pool, pool=policies.pools[pool].spec, spec=policies.effective[pool]
    )
    decided = built.decisions.pools.get(pool)
    admission = decided.admission if decided else None
    return PoolFigures(
        engines=len(policies.pools[pool].spec.endpoints),
        slots=advised.slots,
        ceiling=admission.total if admission is not None and admission.in_force else None,
        tries=advised.tries,
        worst_load=round(worst_load(advised), 3),
    )


def _blast(
    old: PolicySet,
    new: PolicySet,
    figures: tuple[PoolChange, ...],
    changed: tuple[ViewEffects, ...],
    views: Mapping[View, int] | None,
) -> ChangeScope:
    pools = {one.pool for one in figures}
    pools |= {
        name
        for name in old.pools.keys() | new.pools.keys()
        if old.pools.get(name) != new.pools.get(name) or old.effective.get(name) != new.effective.get(name)
    }
    every = {**old.routes, **new.routes}
    routes = {
        name
        for name, route in every.items()
        if old.routes.get(name) != new.routes.get(name) or not pools.isdisjoint(route_pools(route))
    }
    for name in routes:
        if old.routes.get(name) != new.routes.get(name):
            pools |= {
                pool
                for policies in (old, new)
                if name in policies.routes
                for pool in route_pools(policies.routes[name])
            }
    reached = None if views is None else (sum(one.proxies for one in changed), sum(views.values()))
    return ChangeScope(pools=tuple(sorted(pools)), routes=tuple(sorted(routes)), proxies=reached)


def _with_traffic(blast: ChangeScope, arrivals_per_s: Mapping[str, float] | None) -> ChangeScope:
    whole = sum((arrivals_per_s or {}).values())
    if not arrivals_per_s or whole <= 0:
        return blast
    share = 100 * sum(arrivals_per_s.get(pool, 0.0) for pool in blast.pools) / whole
    return ChangeScope(
        pools=blast.pools, routes=blast.routes, proxies=blast.proxies, traffic_percent=round(share, 1)
    )
