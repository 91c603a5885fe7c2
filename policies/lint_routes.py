"""Lint: routes that lead nowhere, or where they should not."""

import ipaddress
from collections.abc import Iterator
from typing import Final

from policies.advice import SetRule
from policies.findings import Finding
from policies.model import PolicySet

_OF_THE_ROUTE: Final = ("retries", "timeouts", "hedging")
"""What Envoy keeps with a route, though a policy says it of a pool."""


def _unreached(policies: PolicySet) -> Iterator[Finding]:
    reached = {target.pool for route in policies.routes.values() for target in route.spec.pools if target.weight}
    reached |= {route.spec.fallback for route in policies.routes.values() if route.spec.fallback}
    for name in policies.pools:
        if name not in reached:
            yield Finding(
                code="SG130",
                origin=policies.origin("EnginePool", name),
                path="",
                message=f"pool {name}: no route leads to it",
                fix="write a ModelRoute that names it among its pools, or as its fallback",
            )


def _fallbacks(policies: PolicySet) -> Iterator[Finding]:
    for name, route in policies.routes.items():
        fallback = route.spec.fallback
        if fallback is None:
            continue
        origin = policies.origin("ModelRoute", name, "spec.fallback")
        targets = [target.pool for target in route.spec.pools if target.weight]
        if fallback in targets:
            yield Finding(
                code="SG131",
                origin=origin,
                path="spec.fallback",
                message=f"route {name}: the fallback {fallback} is a target too, and fails when the target does",
                fix="name another pool, a smaller model say, or remove the fallback",
            )


def _ruled_by_the_first(policies: PolicySet) -> Iterator[Finding]:
    for name, route in policies.routes.items():
        first = route.spec.pools[0].pool
        for pool in (target.pool for target in route.spec.pools[1:] if target.weight):
            one, other = policies.effective[first], policies.effective[pool]
            differing = [block for block in _OF_THE_ROUTE if getattr(one, block) != getattr(other, block)]
            if differing:
                yield Finding(
                    code="SG132",
                    origin=policies.origin("ModelRoute", name, "spec.pools"),
                    path="spec.pools",
                    message=f"route {name}: pool {pool} has {' and '.join(differing)} of its own, which do "
                    f"not hold here: a route is ruled by its first pool, {first}",
                    fix=f"give both pools the same {' and '.join(differing)}, or each a route of its own",
                )


def _own_ports(policies: PolicySet) -> Iterator[Finding]:
    ports = {route.spec.listener.port: name for name, route in policies.routes.items()}
    for name, pool in policies.pools.items():
        for number, endpoint in enumerate(pool.spec.endpoints):
            if endpoint.port in ports and _is_loopback(endpoint.address):
                path = f"spec.endpoints[{number}].port"
                yield Finding(
                    code="SG133",
                    origin=policies.origin("EnginePool", name, path),
                    path=path,
                    message=f"pool {name}: {endpoint.address}:{endpoint.port} is the port that Envoy listens on "
                    f"for route {ports[endpoint.port]}: requests would go round in circles, or Envoy cannot bind",
                    fix="give the listener or the engine another port",
                )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


ROUTE_RULES: Final[tuple[SetRule, ...]] = (_unreached, _fallbacks, _ruled_by_the_first, _own_ports)
