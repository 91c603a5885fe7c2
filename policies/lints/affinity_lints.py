"""Lint: affinity without effect, or against the rest of the policy."""

from collections.abc import Callable, Iterator
from typing import Final

from policies.affinity import Affinity
from policies.findings import Finding
from policies.lints.lint_context import SetRule
from policies.model import PolicySet
from policies.route import is_removed_header

_UNIQUE: Final = frozenset({"x-request-id", "traceparent", "idempotency-key"})
"""Headers with another value in each request."""

_OF_HTTP: Final = frozenset(
    {
        "authorization",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "cookie",
        "date",
        "host",
        "retry-after",
        "server",
        "set-cookie",
        "transfer-encoding",
    }
)
"""Headers with a meaning of their own in answers or requests."""

_FEW: Final = (
    "no engine",
    "one engine, so affinity has no effect",
    "2 engines: when one leaves, half of the keys move",
)
_FEWEST_ENGINES: Final = len(_FEW)


_OF_SOFT: Final = (("slack_percent", "slackPercent"), ("return_after", "returnAfter"))
_OF_STRICT: Final = (("move_within", "moveWithin"),)
"""Attributes and fields without effect in the other mode."""


def _few_engines(policies: PolicySet) -> Iterator[Finding]:
    for name, route in policies.routes.items():
        affinity = route.spec.affinity
        for share in route.spec.pools if affinity is not None else ():
            pool = policies.pools[share.pool].spec
            # Of two engines, one that leaves takes its own sessions with it, and no other.
            fewest = _FEWEST_ENGINES - 1 if affinity is not None and affinity.is_strict else _FEWEST_ENGINES
            if pool.kubernetes is None and len(pool.endpoints) < fewest:
                yield Finding(
                    code="SG165",
                    origin=policies.origin("ModelRoute", name, "spec.affinity"),
                    path="spec.affinity",
                    message=f"route {name}: pool {share.pool} has {_FEW[len(pool.endpoints)]}",
                    fix=f"add engines, at least {fewest}, or remove affinity",
                )


def _useless_headers(policies: PolicySet) -> Iterator[Finding]:
    for name, route in policies.routes.items():
        affinity = route.spec.affinity
        header = affinity.header if affinity is not None else None
        if affinity is None or header is None:
            continue
        if is_removed_header(header):
            why, fix = "listeners remove it, so no request has a key", "use a header with another name"
        elif header.lower() in _UNIQUE:
            why, fix = "it differs in each request, so no two have the same key", "use a header of the session"
        elif affinity.is_strict and header.lower() in _OF_HTTP:
            why, fix = "mode: strict sets it in answers, where it has a meaning already", "use a header of its own"
        else:
            continue
        yield Finding(
            code="SG166",
            origin=policies.origin("ModelRoute", name, "spec.affinity.header"),
            path="spec.affinity.header",
            message=f"route {name}: affinity by {header} has no effect: {why}",
            fix=fix,
        )


def _hedged(policies: PolicySet) -> Iterator[Finding]:
    for name, route in policies.routes.items():
        first = route.spec.pools[0].pool
        if route.spec.affinity is not None and policies.effective[first].hedging.enabled:
            yield Finding(
                code="SG167",
                origin=policies.origin("ModelRoute", name, "spec.affinity"),
                path="spec.affinity",
                message=f"route {name}: pool {first} hedges: the second try runs on an engine without "
                "session or prefix",
                fix="disable hedging for the pool, or remove affinity",
            )


def _unequal_slack(policies: PolicySet) -> Iterator[Finding]:
    yield from _unequal(policies, "slackPercent", lambda one: one.slack_percent, lambda value: f"{value:g}")


def _unequal_return(policies: PolicySet) -> Iterator[Finding]:
    yield from _unequal(policies, "returnAfter", lambda one: one.return_after, lambda value: f"{value:g}s")


def _unequal(
    policies: PolicySet, field: str, of: Callable[[Affinity], float], text: Callable[[float], str]
) -> Iterator[Finding]:
    """Routes with soft affinity whose value of this field another route to the same pool outranks."""
    soft = {
        name: (route, affinity)
        for name, route in policies.routes.items()
        if (affinity := route.spec.affinity) is not None and not affinity.is_strict
    }
    least: dict[str, tuple[float, str]] = {}
    for name, (route, affinity) in soft.items():
        for share in route.spec.pools:
            mine = (of(affinity), name)
            least[share.pool] = min(mine, least.get(share.pool, mine))
    for name, (route, affinity) in soft.items():
        for share in route.spec.pools:
            value, other = least[share.pool]
            if value < of(affinity):
                path = f"spec.affinity.{field}"
                yield Finding(
                    code="SG168",
                    origin=policies.origin("ModelRoute", name, path),
                    path=path,
                    message=f"route {name}: pool {share.pool} has {field} {text(value)} by route {other}: a pool "
                    "has one, the smallest",
                    fix=f"set the same {field} in all routes to the pool",
                )


def _of_the_other_mode(policies: PolicySet) -> Iterator[Finding]:
    for name, route in policies.routes.items():
        affinity = route.spec.affinity
        if affinity is None:
            continue
        for attribute, field in _OF_SOFT if affinity.is_strict else _OF_STRICT:
            if attribute in affinity.model_fields_set:
                path = f"spec.affinity.{field}"
                yield Finding(
                    code="SG169",
                    origin=policies.origin("ModelRoute", name, path),
                    path=path,
                    message=f"route {name}: {field} has no effect with mode: {affinity.mode}",
                    fix="remove it, or set the other mode",
                )


AFFINITY_RULES: Final[tuple[SetRule, ...]] = (
    _few_engines,
    _useless_headers,
    _hedged,
    _unequal_slack,
    _unequal_return,
    _of_the_other_mode,
)
