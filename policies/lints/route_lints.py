"""Lint: routes without effect, or to the wrong pools."""

import ipaddress
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from policies.findings import Finding
from policies.lints.lint_context import LintContext, SetRule
from policies.model import PolicySet
from policies.objectives import Objectives
from policies.quantity import format_duration
from policies.remote_prefill import Stage
from policies.route import ModelChange, is_removed_header

_OF_THE_ROUTE: Final = ("retries", "timeouts", "hedging")
"""Blocks of a pool's policy that Envoy configures per route."""


_FALLBACK_LEVEL: Final = 2
"""Degradation level that sends overflow to the fallbacks."""


def _unreached(policies: PolicySet) -> Iterator[Finding]:
    reached = {target.pool for route in policies.routes.values() for target in route.spec.pools if target.weight}
    reached |= {pool for route in policies.routes.values() for pool in route.spec.fallbacks}
    # Their own lint (SG152) says what leads to a prefill pool.
    reached |= {name for name, pool in policies.pools.items() if pool.spec.stage is Stage.PREFILL}
    for name in policies.pools:
        if name not in reached:
            yield Finding(
                code="SG130",
                origin=policies.origin("EnginePool", name, "metadata.name"),
                path="",
                message=f"pool {name}: no route leads to it",
                fix="add it to spec.pools or spec.fallbacks of a ModelRoute",
            )


def _unused_fallbacks(policies: PolicySet) -> Iterator[Finding]:
    for name, route in policies.routes.items():
        if route.spec.model_change is not ModelChange.NEVER:
            continue
        for number, fallback in enumerate(route.spec.fallbacks):
            own, other = _models(policies, route.spec.pools[0].pool, fallback)
            if own == other:
                continue
            path = f"spec.fallbacks[{number}]"
            yield Finding(
                code="SG134",
                origin=policies.origin("ModelRoute", name, path),
                path=path,
                message=f"route {name}: fallback {fallback} serves {other}, not {own}, and modelChange "
                "is never: it gets no requests",
                fix=f"use a pool that serves {own}, or set modelChange: disclosed (or opt-in)",
            )


def _model_change_of_nothing(policies: PolicySet) -> Iterator[Finding]:
    for name, route in policies.routes.items():
        written = policies.origins.get(f"ModelRoute/{name}.spec.modelChange")
        if written is None or route.spec.model_change is not ModelChange.OPT_IN:
            continue
        own, fallbacks = policies.pools[route.spec.pools[0].pool].spec.model, route.spec.fallbacks
        if all(policies.pools[pool].spec.model == own for pool in fallbacks):
            verb = "serves" if len(fallbacks) == 1 else "serve"
            why = f"{' and '.join(fallbacks)} also {verb} {own}" if fallbacks else "no fallback is set"
            yield Finding(
                code="SG135",
                origin=written,
                path="spec.modelChange",
                message=f"route {name}: modelChange has no effect: {why}",
                fix="set a fallback with another model, or remove modelChange",
            )


def _side_effects_and_hedges(policies: PolicySet) -> Iterator[Finding]:
    for name, route in policies.routes.items():
        first = route.spec.pools[0].pool
        if route.spec.side_effects and policies.effective[first].hedging.enabled:
            yield Finding(
                code="SG136",
                origin=policies.origin("ModelRoute", name, "spec.sideEffects"),
                path="spec.sideEffects",
                message=f"route {name}: pool {first} hedges, but requests with side effects never run twice: "
                "only those with an Idempotency-Key are hedged",
                fix="send an Idempotency-Key, or remove sideEffects and mark single requests with "
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
                    message=f"route {name}: {other} in pool {pool} always serves some requests for {own}, "
                    "without a header that tells callers",
                    fix=f"use fallbacks: [{pool}], which is disclosed, or add a route for {other}",
                )


def _models(policies: PolicySet, one: str, other: str) -> tuple[str, str]:
    return policies.pools[one].spec.model, policies.pools[other].spec.model


def _policy_of_first_pool(policies: PolicySet) -> Iterator[Finding]:
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
                    message=f"route {name}: {' and '.join(differing)} of pool {pool} have no effect here: "
                    f"the first pool, {first}, decides for the route",
                    fix=f"set the same {' and '.join(differing)} for both pools, or split the route",
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
                    message=f"pool {name}: Envoy listens on port {endpoint.port} of route {ports[endpoint.port]}, "
                    f"like engine {endpoint.address}:{endpoint.port}: requests loop, or Envoy cannot bind",
                    fix="change the port of the listener or of the engine",
                )


def _removed_headers(policies: PolicySet) -> Iterator[Finding]:
    for name, route in policies.routes.items():
        for number, header in enumerate(route.spec.match.headers):
            if not is_removed_header(header.name):
                continue
            path = f"spec.match.headers[{number}].name"
            holds = (header.present is False) is not header.invert
            yield Finding(
                code="SG138",
                origin=policies.origin("ModelRoute", name, path),
                path=path,
                message=f"route {name}: listeners remove {header.name} before they choose a route: "
                f"this condition {'always' if holds else 'never'} matches",
                fix="match a header with another name",
            )


def _large_requests_only(policies: PolicySet) -> Iterator[Finding]:
    """Ports whose every route has ``tokensAbove``: smaller requests match none."""
    ports: dict[int, list[tuple[int, str]]] = {}
    for name, route in policies.routes.items():
        ports.setdefault(route.spec.listener.port, []).append((route.spec.match.tokens_above or 0, name))
    for port, found in ports.items():
        least, name = min(found)
        if least:
            path = "spec.match.tokensAbove"
            yield Finding(
                code="SG178",
                origin=policies.origin("ModelRoute", name, path),
                path=path,
                message=f"route {name}: all routes of port {port} have tokensAbove: requests of at most {least} "
                "tokens, and those without a body, get 404",
                fix="add a route without tokensAbove to the port, or remove tokensAbove from this one",
            )


def _sizes_unknown(policies: PolicySet) -> Iterator[Finding]:
    """Routes whose pool has rules by size, on a port where Envoy reads no bodies."""
    for name, route in policies.routes.items():
        first = route.spec.pools[0].pool
        spec = policies.effective[first]
        rules = (
            ("timeouts.nonStreaming.byTokens", spec.timeouts.non_streaming.by_tokens.enabled),
            ("retries.large", spec.retries.large.tokens_above is not None),
            ("hedging.maxTokens", spec.hedging.enabled and spec.hedging.max_tokens is not None),
        )
        ruled = [field for field, in_force in rules if in_force]
        if ruled and route.spec.listener.reads_headers:
            path = "spec.listener.requestFields"
            yield Finding(
                code="SG179",
                origin=policies.origin("ModelRoute", name, path),
                path=path,
                message=f"route {name}: {' and '.join(ruled)} of pool {first} have no effect: with requestFields: "
                "headers Envoy reads no body, so it estimates no tokens",
                fix="set requestFields: body, or remove the rules by size",
            )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Promise:
    """Objectives of the document ``kind`` ``name`` that calls to ``pool`` must meet."""

    kind: str
    name: str
    objectives: Objectives
    pool: str
    weight: int = 1

    @property
    def whose(self) -> str:
        return f"{'pool' if self.kind == 'EnginePool' else 'route'} {self.name}"


def _promises(policies: PolicySet) -> Iterator[_Promise]:
    for name, route in policies.routes.items():
        for target in route.spec.pools:
            if target.pool in policies.pools:
                yield _Promise(
                    kind="ModelRoute",
                    name=name,
                    objectives=route.spec.objectives,
                    pool=target.pool,
                    weight=target.weight,
                )
    for name, pool in policies.pools.items():
        yield _Promise(kind="EnginePool", name=name, objectives=pool.spec.objectives, pool=name)


def _impossible_objectives(policies: PolicySet) -> Iterator[Finding]:
    """Limits of ``spec.objectives`` below what the pools' policies allow."""
    for one in filter(lambda promise: promise.weight, _promises(policies)):
        pool = LintContext(
            policies=policies,
            name=one.pool,
            pool=policies.pools[one.pool].spec,
            spec=policies.effective[one.pool],
        )
        for block, limits, least_s, what in (
            ("firstToken", one.objectives.first_token, pool.wait_s, "requests may wait"),
            ("total", one.objectives.total, pool.pool.service_time, "an answer takes"),
        ):
            for share, limit_s in (("p95", limits.p95), ("p99", limits.p99)):
                if limit_s is not None and limit_s < least_s:
                    path = f"spec.objectives.{block}.{share}"
                    yield Finding(
                        code="SG145",
                        origin=policies.origin(one.kind, one.name, path),
                        path=path,
                        message=f"{one.whose}: the limit is {format_duration(limit_s)}, but {what} "
                        f"{format_duration(least_s)} in pool {one.pool}",
                        fix=f"raise it to at least {format_duration(least_s)}, or lower "
                        + ("limits.maxWait" if block == "firstToken" else "serviceTime of the pool"),
                    )


def _objectives_without_gate(policies: PolicySet) -> Iterator[Finding]:
    for one in _promises(policies):
        limits = one.objectives.first_token
        if not policies.pools[one.pool].spec.first_token_gate and (limits.p95 or limits.p99):
            path = f"spec.objectives.firstToken.{'p95' if limits.p95 else 'p99'}"
            yield Finding(
                code="SG146",
                origin=policies.origin(one.kind, one.name, path),
                path=path,
                message=f"{one.whose}: pool {one.pool} has no first-token gate, so the objective measures "
                "the response headers, which vLLM sends at once",
                fix="install the gate and set firstTokenGate: true on the pool, or use objectives.total",
            )


def _objectives_without_agents(policies: PolicySet) -> Iterator[Finding]:
    for name, pool in policies.pools.items():
        limits, cluster = pool.spec.objectives.between_tokens, pool.spec.kubernetes
        reported = any(one.agent_port is not None for one in pool.spec.endpoints) or (
            cluster is not None and cluster.agent_port is not None
        )
        if not reported and (limits.p95 or limits.p99):
            path = f"spec.objectives.betweenTokens.{'p95' if limits.p95 else 'p99'}"
            yield Finding(
                code="SG147",
                origin=policies.origin("EnginePool", name, path),
                path=path,
                message=f"pool {name}: no engine has an agent, so nothing measures the time between tokens",
                fix="run agents and set agentPort of the engines, or remove betweenTokens",
            )


def _static_answers(policies: PolicySet) -> Iterator[Finding]:
    for name, route in policies.routes.items():
        answer = route.spec.static_answer
        if answer is None:
            continue
        level, ladder = answer.from_level, policies.effective[route.spec.pools[0].pool].degradation
        if level is not None and level <= _FALLBACK_LEVEL and ladder.fallback.enabled and route.spec.fallbacks:
            path = "spec.staticAnswer.fromLevel"
            yield Finding(
                code="SG148",
                origin=policies.origin("ModelRoute", name, path),
                path=path,
                message=f"route {name}: from level {level} on no request reaches a pool, so fallback "
                f"{route.spec.fallbacks[0]} gets no overflow at level {_FALLBACK_LEVEL}",
                fix="write fromLevel: 3, or remove fallbacks",
            )
        if _is_json(answer.content_type) and not _parses(answer.body):
            path = "spec.staticAnswer.body"
            yield Finding(
                code="SG149",
                origin=policies.origin("ModelRoute", name, path),
                path=path,
                message=f"route {name}: contentType is {answer.content_type}, but the body is not JSON: clients "
                "fail to parse it",
                fix="write JSON, or set contentType: text/plain",
            )


def _is_json(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == "application/json"


def _parses(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


ROUTE_RULES: Final[tuple[SetRule, ...]] = (
    _unreached,
    _unused_fallbacks,
    _model_change_of_nothing,
    _side_effects_and_hedges,
    _split_between_models,
    _policy_of_first_pool,
    _own_ports,
    _removed_headers,
    _impossible_objectives,
    _objectives_without_gate,
    _objectives_without_agents,
    _static_answers,
    _large_requests_only,
    _sizes_unknown,
)
