"""Lint: routes to adapters that no engine can have, and to pools whose adapters are not read."""

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


ADAPTER_RULES: Final[tuple[SetRule, ...]] = (_named_like_a_model, _unread)
