"""Checks of the objectives that the policies promise: one finding per objective of a route or a pool. Pure.

A scenario has its own promises; ``spec.objectives`` of routes and pools are the operator's. They must hold from
the first fault to the end, but only where a policy can keep them. Not judged are overloads (``overload_spans``),
requests through a proxy that was stopped or throttled, and, as failures, streams that the fault itself cut.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from chaos.checks import text_format
from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.check_input import CheckInput
from chaos.checks.stream_checks import taken_by_fault
from chaos.history.history_events import AttemptRecord, RequestRecord
from chaos.history.request_outcomes import quantile
from chaos.measures.overload_spans import is_within, overload_spans
from chaos.measures.possible_goodput import stopped_proxies
from chaos.measures.request_periods import is_cut_stream, token_gaps_s
from chaos.testbed.request_shape import KINDS, RequestKind, RequestShapeError, meets, request_shape
from policies.findings import PolicyErrors
from policies.load import load_contents
from policies.model import PolicySet
from policies.objectives import Objective, ObjectiveKind
from policies.route import ModelRoute
from xds_server.translate.route_configuration import by_specificity
from xds_server.translate.tenant_quotas import QUOTA_REASON

PREFIX: Final = "objective:"
"""Start of these checks' names: then ROUTE/OBJECTIVE or pool/POOL/OBJECTIVE, as ``switchgear get objectives``."""

_OF_STREAMS: Final = frozenset({ObjectiveKind.FIRST_TOKEN, ObjectiveKind.BETWEEN_TOKENS})
_LEAST: Final = 1e-9
"""Calls: less is rounding."""


@dataclass(frozen=True, kw_only=True)
class _Owner:
    """A route or a pool with its objectives.

    ``pools`` may serve its requests; they share the load of all requests that these pools served.
    """

    case: CheckInput
    name: str
    objectives: tuple[Objective, ...]
    owns: Callable[[RequestRecord], bool]
    arrivals_s: tuple[float, ...]
    capacities_per_s: Mapping[str, float]
    calls: Mapping[str, Sequence[AttemptRecord]]

    @cached_property
    def _overloads(self) -> tuple[tuple[float, float], ...]:
        return self._spans(full_speed=False)

    @cached_property
    def _overloads_at_full_speed(self) -> tuple[tuple[float, float], ...]:
        return self._spans(full_speed=True)

    def _spans(self, *, full_speed: bool) -> tuple[tuple[float, float], ...]:
        case = self.case
        return overload_spans(
            case.history,
            case.impairments_of_all_pools,
            self.arrivals_s,
            self.capacities_per_s,
            full_speed=full_speed,
        )

    @cached_property
    def _stopped_proxies(self) -> Sequence[tuple[str, float, float]]:
        return stopped_proxies(self.case.history, least_share=0.0)

    def asked(self, one: Objective) -> list[RequestRecord]:
        """Its requests that the objective is about, from the first fault to the end."""
        case = self.case
        if one.kind is ObjectiveKind.GOOD:
            some: Iterable[RequestRecord] = (
                request for request in case.questions if case.from_s <= request.at_s < case.end_s
            )
        else:
            some = case.judged_requests
        return [request for request in some if self._is_about(one, request)]

    def has_any(self, one: Objective) -> bool:
        """Whether any request of the whole experiment is of the objective's kind."""
        return any(self._is_about(one, request) for request in self.case.history.requests)

    def _is_about(self, one: Objective, request: RequestRecord) -> bool:
        if request.refusal == QUOTA_REASON:
            return False  # as in the server's own count
        return self.owns(request) and (one.kind not in _OF_STREAMS or request.streaming)

    def can_be_kept(self, one: Objective, request: RequestRecord) -> bool:
        """Whether a policy can keep the objective for this request."""
        good = one.kind is ObjectiveKind.GOOD
        if is_within(request.at_s, self._overloads if good else self._overloads_at_full_speed):
            return False
        if any(
            proxy == request.proxy and start_s < request.ended_at_s and request.at_s < end_s
            for proxy, start_s, end_s in self._stopped_proxies
        ):
            return False
        lost = good and is_cut_stream(request)
        return not (lost and taken_by_fault(self.case, request, self.calls.get(request.request_id, ())))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """What an objective counts, calls or gaps: how many, those within it, and the value at its percentile."""

    what: str
    total: int
    good: int
    at_target_s: float | None
    first_bad_s: float | None


def objectives(case: CheckInput) -> tuple[CheckFinding, ...]:
    """One finding per objective of a route or a pool whose requests could keep it."""
    return tuple(
        found for owner in _owners(case) for one in owner.objectives if (found := _finding(owner, one)) is not None
    )


def objectives_not_judged(case: CheckInput) -> tuple[str, ...]:
    """Names of the objectives of these routes and pools that have no finding."""
    judged = {one.check for one in objectives(case)}
    declared = (_name(owner, one) for owner in _owners(case) for one in owner.objectives)
    return tuple(name for name in declared if name not in judged)


def _name(owner: _Owner, one: Objective) -> str:
    return f"{PREFIX}{owner.name}/{one.name}"


def _owners(case: CheckInput) -> Iterator[_Owner]:
    """Routes and pools with objectives, and requests."""
    began = case.history.began
    policies = _served_policies(began.policies)
    if policies is None:
        return
    calls: dict[str, list[AttemptRecord]] = defaultdict(list)
    for attempt in case.history.attempts:
        calls[attempt.request_id].append(attempt)
    pools = {one.name: one.pool for one in began.engines}

    def pool_of(request: RequestRecord) -> str:
        """The pool that answered; the one under test if none did."""
        tried = calls.get(request.request_id, ())
        return request.fallback or (pools.get(tried[-1].engine, began.pool) if tried else began.pool)

    def owner(
        name: str, some: Iterable[Objective], served_by: frozenset[str], owns: Callable[[RequestRecord], bool]
    ) -> _Owner:
        return _Owner(
            case=case,
            name=name,
            objectives=tuple(some),
            owns=owns,
            arrivals_s=tuple(request.at_s for request in case.questions if pool_of(request) in served_by),
            capacities_per_s=_capacities_per_s(case, policies, served_by),
            calls=calls,
        )

    for route, kinds in _routes(case, policies):
        served_by = frozenset({began.pool, *route.spec.fallbacks})
        yield owner(route.metadata.name, route.spec.objectives.all(), served_by, _of_kinds(case, kinds))
    for name, pool in policies.pools.items():
        if any(pool.spec.objectives.all()):
            yield owner(f"pool/{name}", pool.spec.objectives.all(), frozenset({name}), _of_pool(name, pool_of))


def _of_kinds(case: CheckInput, kinds: frozenset[RequestKind]) -> Callable[[RequestRecord], bool]:
    large = frozenset() if case.spec is None else case.spec.load.large
    return lambda request: RequestKind(request.batch, request.streaming, request.group in large) in kinds


def _of_pool(name: str, pool_of: Callable[[RequestRecord], str]) -> Callable[[RequestRecord], bool]:
    return lambda request: pool_of(request) == name


def _capacities_per_s(case: CheckInput, policies: PolicySet, served_by: frozenset[str]) -> Mapping[str, float]:
    """Maximum requests per second of each healthy engine of these pools."""
    began = case.history.began
    service_s = {name: pool.spec.service_time for name, pool in policies.pools.items()} | {
        began.pool: began.service_s
    }
    return {
        one.name: one.slots / (service_s[one.pool] * one.slowness)
        for one in began.engines
        if one.pool in served_by and one.pool in service_s
    }


def _routes(case: CheckInput, policies: PolicySet) -> Iterator[tuple[ModelRoute, frozenset[RequestKind]]]:
    """Routes with objectives, each with the kinds of requests that it got."""
    began = case.history.began
    routes = tuple(policies.routes.values())
    to_pool = [one for one in routes if any(share.pool == began.pool and share.weight for share in one.spec.pools)]
    streaming = frozenset(one.streaming for one in case.history.requests)
    try:
        route, shape = request_shape(to_pool, began.pool, streaming)
    except RequestShapeError:
        return
    ordered = by_specificity(one for one in routes if one.spec.listener.port == route.spec.listener.port)
    taken = {kind: next((one for one in ordered if meets(one, shape, kind)), None) for kind in KINDS}
    for one in ordered:
        kinds = frozenset(kind for kind, route in taken.items() if route is one)
        if kinds and any(one.spec.objectives.all()):
            yield one, kinds


def _served_policies(text: str) -> PolicySet | None:
    """The policies as served in the lab, with request times in lab time; None without objectives."""
    if "objectives:" not in text:
        return None
    try:
        return load_contents({Path("policies.yaml"): text.encode()})
    except PolicyErrors:
        return None


def _finding(owner: _Owner, one: Objective) -> CheckFinding | None:
    """Result of one objective; None if no request could keep it."""
    case, check = owner.case, _name(owner, one)
    limit = f"<= {text_format.seconds(one.limit_s)}" if one.limit_s else f">= {100 * one.target:g} %"
    asked = owner.asked(one)
    judged = [request for request in asked if owner.can_be_kept(one, request)]
    if not judged and (asked or not owner.has_any(one)):
        return None
    left_out = len(asked) - len(judged)
    found = _measured(one, judged)
    if not found.total:
        return CheckFinding(
            check=check, answer=CheckResult.UNKNOWN, why=f"no {found.what} to measure", limit=limit
        )
    share = 100 * found.good / found.total
    kept = found.good >= one.target * found.total - _LEAST
    within = f" within {text_format.seconds(one.limit_s)}" if one.limit_s else ""
    why = f"{text_format.percent(share)} of {text_format.count(found.total, found.what)} good{within}"
    why += f" (target {100 * one.target:g} %)" if kept else f", below the target of {100 * one.target:g} %"
    if one.limit_s and case.history.began.time_scale > 1.0:
        why += f"; times are divided by {case.history.began.time_scale:g} in the lab"
    if left_out:
        why += f"; not judged: {text_format.count(left_out, 'request')} for which no policy could keep it"
    measured = text_format.percent(share) if found.at_target_s is None else text_format.seconds(found.at_target_s)
    numbers = {"good_percent": share, f"{found.what}s": float(found.total), "not_judged": float(left_out)}
    if found.at_target_s is not None:
        numbers["measured_s"] = found.at_target_s
    return CheckFinding(
        check=check,
        answer=CheckResult.YES if kept else _missed(case, one, found),
        why=why,
        measured=measured,
        limit=limit,
        at_s=None if kept else found.first_bad_s,
        numbers=numbers,
    )


def _missed(case: CheckInput, one: Objective, found: _Measured) -> CheckResult:
    """NO, or UNKNOWN if unrecorded requests could have kept the objective."""
    missing = case.missing_requests
    if missing and one.kind is ObjectiveKind.BETWEEN_TOKENS:
        return CheckResult.UNKNOWN  # their tokens are unknown too
    hopeless = found.good + missing < one.target * (found.total + missing) - _LEAST
    return CheckResult.NO if hopeless else CheckResult.UNKNOWN


def _measured(one: Objective, judged: Sequence[RequestRecord]) -> _Measured:
    """All requests, complete answers for a latency, or their gaps between tokens."""
    if one.kind is ObjectiveKind.GOOD:
        bad_s = [request.at_s for request in judged if not request.ok]
        return _Measured(
            what="call",
            total=len(judged),
            good=len(judged) - len(bad_s),
            at_target_s=None,
            first_bad_s=min(bad_s, default=None),
        )
    took_s = [
        (value_s, request.at_s) for request in judged if request.ok for value_s in _times_s(one.kind, request)
    ]
    late_s = [at_s for value_s, at_s in took_s if value_s > one.limit_s]
    return _Measured(
        what="gap" if one.kind is ObjectiveKind.BETWEEN_TOKENS else "call",
        total=len(took_s),
        good=len(took_s) - len(late_s),
        at_target_s=quantile([value_s for value_s, _ in took_s], one.target),
        first_bad_s=min(late_s, default=None),
    )


def _times_s(kind: ObjectiveKind, request: RequestRecord) -> tuple[float, ...]:
    if kind is ObjectiveKind.BETWEEN_TOKENS:
        return token_gaps_s(request)
    took_s = request.first_token_s if kind is ObjectiveKind.FIRST_TOKEN else request.latency_s
    return () if took_s is None else (took_s,)
