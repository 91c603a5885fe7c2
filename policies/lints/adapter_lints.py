"""Lint: routes to adapters that no engine can have, pools whose adapters are not read, and vain loads."""

from collections.abc import Iterator
from typing import Final

from policies.findings import Finding
from policies.lints.lint_context import SetRule, has_verdicts
from policies.model import PolicySet


def _named_like_a_model(policies: PolicySet) -> Iterator[Finding]:
    for name, route in policies.routes.items():
        first = route.spec.pools[0].pool
        if route.spec.adapter_name == policies.pools[first].spec.model:
            yield Finding(
                code="SG158",
                origin=policies.origin("ModelRoute", name, "spec.adapter"),
                path="spec.adapter",
                message=f"route {name}: {route.spec.adapter_name} is the model of pool {first}, not an adapter: "
                "requests get 503",
                fix="remove adapter, or set match.model to the name of the adapter",
            )


def _unread(policies: PolicySet) -> Iterator[Finding]:
    for name, route in policies.routes.items():
        first = route.spec.pools[0].pool
        if route.spec.adapter_name and not has_verdicts(policies.pools[first].spec):
            yield Finding(
                code="SG159",
                origin=policies.origin("ModelRoute", name, "spec.adapter"),
                path="spec.adapter",
                message=f"route {name}: pool {first} has neither probes nor agents, so its adapters are unknown "
                "and requests go to every engine",
                fix="enable the probe of the pool, or run agents",
            )


def _loads_without_use(policies: PolicySet) -> Iterator[Finding]:
    """Adapters that a pool loads, and that no route asks it for."""
    asked: dict[str, set[str]] = {}
    for route in policies.routes.values():
        for target in (*(share.pool for share in route.spec.pools), *route.spec.fallbacks):
            asked.setdefault(target, set()).update(route.spec.adapter_names)
    for name, pool in policies.pools.items():
        for number, adapter in enumerate(pool.spec.adapters):
            if adapter.name not in asked.get(name, ()):
                path = f"spec.adapters[{number}].name"
                yield Finding(
                    code="SG156",
                    origin=policies.origin("EnginePool", name, path),
                    path=path,
                    message=f"pool {name} loads the adapter {adapter.name}, and no route with adapter: true asks "
                    "for it",
                    fix=f"add a route with match.model: {adapter.name} and adapter: true, or remove the adapter",
                )


def _more_than_engines(policies: PolicySet) -> Iterator[Finding]:
    """Adapters for more engines than a pool has."""
    for name, pool in policies.pools.items():
        for number, adapter in enumerate(pool.spec.adapters):
            path = f"spec.adapters[{number}].engines"
            if pool.spec.kubernetes is None and (adapter.engines or 0) > len(pool.spec.endpoints):
                yield Finding(
                    code="SG157",
                    origin=policies.origin("EnginePool", name, path),
                    path=path,
                    message=f"pool {name} has {len(pool.spec.endpoints)} engines, and adapter {adapter.name} is "
                    f"wanted on {adapter.engines}",
                    fix="remove engines (default: all), or add engines to the pool",
                )


ADAPTER_RULES: Final[tuple[SetRule, ...]] = (_named_like_a_model, _unread, _loads_without_use, _more_than_engines)
