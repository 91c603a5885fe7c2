"""Lint: routes that lead nowhere, or where they should not."""

import ipaddress
from collections.abc import Iterator
from typing import Final

from policies.findings import Finding
from policies.lints.lint_context import SetRule
from policies.model import PolicySet
from policies.route import ENVOYS_HEADERS, SET_BEFORE_ROUTES, ModelChange

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


def _unused_fallbacks(policies: PolicySet) -> Iterator[Finding]:
    for name, route in policies.routes.items():
        fallback = route.spec.fallback
        if fallback is None or route.spec.model_change is not ModelChange.NEVER:
            continue
        own, other = _models(policies, route.spec.pools[0].pool, fallback)
        if own != other:
            yield Finding(
                code="SG134",
                origin=policies.origin("ModelRoute", name, "spec.fallback"),
                path="spec.fallback",
                message=f"route {name}: the fallback {fallback} serves {other}, not {own}, and modelChange "
                "is never: it takes nothing, whatever happens",
                fix=f"name a pool that serves {own}, or say modelChange: opt-in or disclosed",
            )


def _model_change_of_nothing(policies: PolicySet) -> Iterator[Finding]:
    for name, route in policies.routes.items():
        said = policies.origins.get(f"ModelRoute/{name}.spec.modelChange")
        if said is None or route.spec.model_change is not ModelChange.OPT_IN:
            continue
        fallback = route.spec.fallback
        own, other = _models(policies, route.spec.pools[0].pool, fallback or route.spec.pools[0].pool)
        if own == other:
            why = "it has no fallback" if fallback is None else f"its fallback {fallback} serves {own}, too"
            yield Finding(
                code="SG135",
                origin=said,
                path="spec.modelChange",
                message=f"route {name}: nobody need opt in to anything, as {why}",
                fix="name a fallback of another model, or leave modelChange out",
            )


def _side_effects_and_hedges(policies: PolicySet) -> Iterator[Finding]:
    for name, route in policies.routes.items():
        first = route.spec.pools[0].pool
        if route.spec.side_effects and policies.effective[first].hedging.enabled:
            yield Finding(
                code="SG136",
                origin=policies.origin("ModelRoute", name, "spec.sideEffects"),
                path="spec.sideEffects",
                message=f"route {name}: pool {first} hedges, but requests with side effects are never run twice: "
                "only those with an Idempotency-Key are hedged here",
                fix="have callers send an Idempotency-Key, or leave sideEffects out and mark single requests with "
                "x-switchgear-side-effects: true",
            )


def _split_between_models(policies: PolicySet) -> Iterator[Finding]:
    for name, route in policies.routes.items():
        first = route.spec.pools[0].pool
        for pool in (target.pool for target in route.spec.pools[1:] if target.weight):
            own, other = _models(policies, first, pool)
            if own != other:
                yield Finding(
                    code="SG137",
                    origin=policies.origin("ModelRoute", name, "spec.pools"),
                    path="spec.pools",
                    message=f"route {name}: some requests for {own} are served by {other} in pool {pool}, always, "
                    "and no header tells their callers",
                    fix=f"say fallback: {pool}, which is disclosed, or give {other} a route of its own",
                )


def _models(policies: PolicySet, one: str, other: str) -> tuple[str, str]:
    return policies.pools[one].spec.model, policies.pools[other].spec.model


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


def _headers_of_envoys_own(policies: PolicySet) -> Iterator[Finding]:
    for name, route in policies.routes.items():
        for number, header in enumerate(route.spec.match.headers):
            if not header.name.lower().startswith(ENVOYS_HEADERS) or header.name.lower() in SET_BEFORE_ROUTES:
                continue
            path = f"spec.match.headers[{number}].name"
            holds = (header.present is False) is not header.invert
            yield Finding(
                code="SG138",
                origin=policies.origin("ModelRoute", name, path),
                path=path,
                message=f"route {name}: {header.name} is taken out of every request before a route is chosen, so "
                f"this condition {'always' if holds else 'never'} holds",
                fix="have callers send a header of another name, and ask for that",
            )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


ROUTE_RULES: Final[tuple[SetRule, ...]] = (
    _unreached,
    _fallbacks,
    _unused_fallbacks,
    _model_change_of_nothing,
    _side_effects_and_hedges,
    _split_between_models,
    _ruled_by_the_first,
    _own_ports,
    _headers_of_envoys_own,
)
