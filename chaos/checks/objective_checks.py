"""Check of the objectives that the policies promise to callers of their routes. Pure.

A scenario has its own promises; ``spec.objectives`` of a route are the operator's. They must hold for the judged
period of the scenario, although it is short and has faults: the share of good calls reaches each target.
"""

from collections.abc import Iterator
from pathlib import Path

from chaos.checks import text_format
from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.check_input import CheckInput
from chaos.history.history_events import ExperimentBegan, RequestRecord
from chaos.testbed.request_shape import RequestShapeError, meets, request_shape
from policies.findings import PolicyErrors
from policies.load import load_contents
from policies.objectives import Objective, ObjectiveKind
from policies.route import ModelRoute
from xds_server.translate.route_configuration import by_specificity

_KINDS = tuple((batch, streaming) for batch in (False, True) for streaming in (False, True))


def objectives(case: CheckInput) -> CheckFinding | None:
    """Every objective of every route that the requests took; None without any."""
    judged = [_judged(case, route, kinds, one) for route, kinds in _routes(case) for one in _declared(route)]
    if not judged:
        return None
    missed = [one for one in judged if one.answer is not CheckResult.YES]
    first = [one.at_s for one in missed if one.at_s is not None]
    broken = any(one.answer is CheckResult.NO for one in missed)
    return CheckFinding(
        check="objectives",
        answer=CheckResult.YES if not missed else CheckResult.NO if broken else CheckResult.UNKNOWN,
        why="; ".join(one.why for one in missed or judged),
        measured=f"{len(judged) - len(missed)} of {text_format.count(len(judged), 'objective')}",
        limit="all",
        at_s=min(first, default=None),
        numbers={name: value for one in judged for name, value in one.numbers.items()},
    )


def _declared(route: ModelRoute) -> tuple[Objective, ...]:
    return tuple(route.spec.objectives.all())


def _routes(case: CheckInput) -> Iterator[tuple[ModelRoute, frozenset[tuple[bool, bool]]]]:
    """Routes with objectives, each with the requests (batch, streaming) that it got."""
    began = case.history.began
    routes = _served_routes(began)
    if not any(_declared(route) for route in routes):
        return
    to_pool = [one for one in routes if any(share.pool == began.pool and share.weight for share in one.spec.pools)]
    streaming = frozenset(one.streaming for one in case.history.requests)
    try:
        route, shape = request_shape(to_pool, began.pool, streaming)
    except RequestShapeError:
        return
    ordered = by_specificity(one for one in routes if one.spec.listener.port == route.spec.listener.port)
    taken = {
        kind: next((one for one in ordered if meets(one, shape, batch=kind[0], streaming=kind[1])), None)
        for kind in _KINDS
    }
    for one in ordered:
        kinds = frozenset(kind for kind, route in taken.items() if route is one)
        if kinds and _declared(one):
            yield one, kinds


def _served_routes(began: ExperimentBegan) -> tuple[ModelRoute, ...]:
    """Routes of the policies as served in the lab, with request times in lab time."""
    if "objectives:" not in began.policies:
        return ()
    try:
        return tuple(load_contents({Path("policies.yaml"): began.policies.encode()}).routes.values())
    except PolicyErrors:
        return ()


def _judged(
    case: CheckInput, route: ModelRoute, kinds: frozenset[tuple[bool, bool]], one: Objective
) -> CheckFinding:
    name = f"{route.metadata.name}/{one.name}"
    calls = [(request, _kept(request, one)) for request in _counted(case, kinds, one)]
    target = f"{100 * one.target:g} %"
    if not calls:
        return CheckFinding(check=name, answer=CheckResult.UNKNOWN, why=f"{name}: no call to measure")
    good = sum(kept for _, kept in calls)
    share = 100 * good / len(calls)
    within = f" within {text_format.seconds(one.limit_s)}" if one.limit_s else ""
    why = f"{name}: {text_format.percent(share)} of {text_format.count(len(calls), 'call')} good{within}"
    if share >= 100 * one.target:
        return CheckFinding(
            check=name, answer=CheckResult.YES, why=f"{why} (target {target})", numbers={name: share}
        )
    missing = case.missing_requests
    hopeless = 100 * (good + missing) / (len(calls) + missing) < 100 * one.target
    return CheckFinding(
        check=name,
        answer=CheckResult.NO if hopeless else CheckResult.UNKNOWN,
        why=f"{why}, below the target of {target}",
        at_s=next(request.at_s for request, kept in calls if not kept),
        numbers={name: share},
    )


def _counted(case: CheckInput, kinds: frozenset[tuple[bool, bool]], one: Objective) -> Iterator[RequestRecord]:
    """Requests that the objective judges: all caller requests, or complete answers for a latency."""
    if one.kind is ObjectiveKind.GOOD:
        some = (request for request in case.questions if case.from_s <= request.at_s < case.end_s)
    else:
        some = (request for request in case.judged_requests if request.ok)
    for request in some:
        if (request.batch, request.streaming) not in kinds:
            continue
        if one.kind is not ObjectiveKind.FIRST_TOKEN or request.first_token_s is not None:
            yield request


def _kept(request: RequestRecord, one: Objective) -> bool:
    if one.kind is ObjectiveKind.GOOD:
        return request.ok
    took_s = request.first_token_s if one.kind is ObjectiveKind.FIRST_TOKEN else request.latency_s
    return took_s is not None and took_s <= one.limit_s
