"""Explanation of one engine: its state, the evidence, and why it is not in another state."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from engine.report import EngineReport, Verdict
from policies.remote_prefill import Stage
from policies.resilience import ResilienceSpec
from xds_server.admin.views.context import UnknownNameError, ViewContext, event_status, rule_status
from xds_server.admin_api.status_types import Explanation
from xds_server.decide.decide import return_after_by_pool
from xds_server.decide.decisions import Ejector, EngineDecision, Health, ShareRamp
from xds_server.decide.diff.change import Subject
from xds_server.decide.diff.policy_fields import CONSECUTIVE_ERRORS, ERROR_RATE, engine_rule
from xds_server.ledger.event import Event
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.order import Order, OrderAction
from xds_server.model.pod_state import PodPhase
from xds_server.model.pool_traffic import EngineTraffic, PoolTraffic
from xds_server.model.text import age_text, duration_text
from xds_server.translate.affinity import slack_by_pool
from xds_server.translate.engine_selection import adapters_by_pool
from xds_server.translate.key_shares import KeyShare, key_shares
from xds_server.translate.prefillers import MOST_PREFILLERS, decode_pools, named_shares, prefillers
from xds_server.translate.strict_sessions import strict_pools

MOST_PAST: Final = 12
"""Events shown; ``switchgear get events --output json`` has more."""

_MOST_ADAPTERS: Final = 8

_FEW_IN_FLIGHT: Final = 10

_SAME_ROUND_S: Final = 1.0
"""An event is stored shortly after the decision, with a later clock reading."""

_STATES: Final = {
    Health.HEALTHY: "in rotation",
    Health.UNHEALTHY: "ejected",
    Health.DRAINING: "draining (finishing its requests, receiving no new ones)",
}
_EJECTORS: Final = {
    Ejector.VERDICT: "its verdict is bad",
    Ejector.ERRORS: "its calls fail",
    Ejector.SLOWNESS: "it is slower than its peers",
    Ejector.ORCHESTRATOR: "its orchestrator reports it unavailable",
    Ejector.OPERATOR: "an operator ordered it",
}
_STANDINGS: Final = {
    PodPhase.PRESENT: "present",
    PodPhase.NOT_READY: "not ready",
    PodPhase.UNFIT: "on an unfit node",
    PodPhase.LEAVING: "leaving",
    PodPhase.GONE: "gone",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One engine with all data about it."""

    engine: Engine
    decision: EngineDecision
    ramp: ShareRamp | None
    resilience: ResilienceSpec
    order: Order | None
    pool_traffic: PoolTraffic | None
    failed: tuple[str, ...]
    adapters: tuple[str, ...]
    slack_percent: float | None
    return_after_s: float
    key_share: KeyShare | None
    keeps_sessions: bool
    kept_percent: float
    prefill: tuple[str, ...]
    now_s: float
    is_known: bool

    @property
    def traffic(self) -> EngineTraffic | None:
        return None if self.pool_traffic is None else self.pool_traffic.engines.get(self.engine.id.engine)

    @property
    def report(self) -> EngineReport | None:
        return self.engine.report


def why_engine(key: EngineId, scene: ViewContext) -> Explanation:
    """Explain this engine; ``UnknownNameError`` before its first decision."""
    engine, decision = scene.fleet.engine(key), scene.decisions.engines.get(key)
    if engine is None or decision is None:
        raise UnknownNameError(f"no decision on {key} yet: its address is not resolved")
    slack = slack_by_pool(scene.policies.routes).get(key.pool)
    events = scene.event_store.of([Subject(pool=key.pool, engine=key.engine)])
    case = _Case(
        engine=engine,
        decision=decision,
        ramp=scene.decisions.pools[key.pool].ramps.get(key),
        resilience=scene.policies.effective[key.pool],
        order=scene.orders.get(key),
        pool_traffic=scene.fleet.traffic.get(key.pool),
        failed=_failed_requests(decision, events),
        adapters=tuple(one.adapter for one in adapters_by_pool(scene.policies).get(key.pool, ())),
        slack_percent=slack,
        return_after_s=return_after_by_pool(scene.policies.routes).get(key.pool, 0.0),
        key_share=None
        if slack is None
        else key_shares(key.pool, scene.fleet.pools[key.pool], scene.decisions).get(key.engine),
        keeps_sessions=key.pool in strict_pools(scene.policies.routes),
        kept_percent=scene.decisions.pools[key.pool].sessions.get(key, 0.0),
        prefill=tuple(_prefill(key, scene)),
        now_s=scene.now.s,
        is_known=scene.fleet.is_known(engine),
    )
    why_not = tuple(_why_not(case))
    rules = [engine_rule(decision)]
    if decision.ejector is Ejector.ERRORS:
        rules.extend([ERROR_RATE] if decision.floor else [])
        rules.append(CONSECUTIVE_ERRORS)
    found = [rule_status(rule, key.pool, scene.policies) for rule in rules]
    return Explanation(
        subject=str(key),
        kind="engine",
        well=case.is_known
        and decision.health is Health.HEALTHY
        and decision.ejector is None
        and decision.traffic_percent >= 100,
        now=_headline(case),
        because=tuple(_because(case)),
        why_not=why_not,
        ruled_by=tuple(one for one in found if one is not None),
        returns=decision.returns or _returns(case),
        until_in_s=None if decision.until_s is None else round(max(0.0, decision.until_s - scene.now.s), 3),
        past=tuple(event_status(event, scene.now) for event in reversed(events[-MOST_PAST:])),
    )


def _headline(case: _Case) -> str:
    decision, engine = case.decision, case.engine
    zone = f" (zone {engine.zone})" if engine.zone else ""
    since = duration_text(case.now_s - decision.since_s)
    text = f"{engine.id}{zone} has been {_STATES[decision.health]} for {since}"
    if decision.health is Health.HEALTHY and not case.is_known:
        text += ", but its state is unknown: no report and no request yet"
    if decision.health is Health.HEALTHY and decision.traffic_percent < 100:
        text += f", on trial with {decision.traffic_percent:g} % of its share"
    if case.ramp is not None and case.ramp.held_until_s is None:
        left = age_text(case.ramp.full_at_s - case.now_s)
        text += f"; slow start: {case.ramp.percent:g} % of its share, full in {left}"
    if decision.health is not Health.HEALTHY and decision.ejector is Ejector.ORCHESTRATOR:
        # The reason may concern another engine of the group.
        pod = decision.pod_state
        text += f", because {pod.reason if pod is not None else _EJECTORS[decision.ejector]}"
    elif decision.health is Health.UNHEALTHY and decision.ejector is not None:
        judged = decision.ejector is Ejector.VERDICT and decision.verdict is not None
        text += f", because {f'it is {decision.verdict}' if judged else _EJECTORS[decision.ejector]}"
    if decision.cut:
        ended = case.traffic is not None and case.traffic.in_flight == 0
        text += "; no proxy has requests on it" if ended else "; its requests are being cut"
    return f"{text}."


def _because(case: _Case) -> Iterator[str]:
    report = case.report
    yield _sentence(case.decision.reason)
    if report is None:
        yield "No report yet."
    else:
        age = (
            ""
            if case.engine.received_at_s is None
            else f", {duration_text(case.now_s - case.engine.received_at_s)} ago"
        )
        yield f"Last report ({report.source}{age}): {report.verdict}."
        for reason in report.reasons:
            held = f" (limit: {reason.threshold})" if reason.threshold else ""
            yield f"- {_sentence(reason.sentence + held)}"
        if case.decision.cut:
            yield (
                "Requests are cut while it is hung, so an idle report is not evidence of recovery; only "
                "a completed request is."
            )
        yield from _adapters(report.adapters, case.adapters)
    if case.slack_percent is not None:
        yield _affinity(case, case.slack_percent)
    if case.keeps_sessions:
        yield _sessions(case)
    yield from case.prefill
    pod = case.engine.pod_state
    if pod is not None and pod.standing is not PodPhase.PRESENT:
        yield f"Orchestrator state: {_STANDINGS[pod.standing]}: {_sentence(pod.reason)}"
    if case.failed:
        yield f"Failed requests before that: {', '.join(case.failed)}."
    if case.traffic is None:
        yield "No traffic reported by any proxy."
    else:
        yield _calls(case.traffic, case.resilience)


def _adapters(known: tuple[str, ...] | None, routed: Sequence[str]) -> Iterator[str]:
    """Adapters of the engine, and those of routes that it lacks."""
    if known is None:
        if routed:
            yield "It has not listed its models yet: it gets requests for every adapter."
        return
    if known:
        shown = ", ".join(known[:_MOST_ADAPTERS])
        more = f" and {len(known) - _MOST_ADAPTERS} more" if len(known) > _MOST_ADAPTERS else ""
        yield f"Adapters: {shown}{more}."
    missing = sorted(set(routed).difference(known))
    if missing:
        yield f"No requests for {', '.join(missing)}: the engine does not list {'them' if missing[1:] else 'it'}."


def _affinity(case: _Case, slack_percent: float) -> str:
    """What becomes of the keys of routes with affinity."""
    after = f" and is healthy for {duration_text(case.return_after_s)}" if case.return_after_s else ""
    if case.decision.health is not Health.HEALTHY:
        return f"Affinity: its keys are with other engines until it returns{after}."
    ramp_percent = 100.0 if case.ramp is None else case.ramp.percent
    percent = min(case.decision.traffic_percent, ramp_percent)
    share = _share(case.key_share)
    if case.ramp is not None and case.ramp.held_until_s is not None:
        left = age_text(max(0.0, case.ramp.held_until_s - case.now_s))
        return (
            f"Affinity: it returned and has about {percent:g} % of its keys{share}; the others stay elsewhere for "
            f"{left} more (affinity.returnAfter), or until the other engines have little room."
        )
    if percent < 100:
        return f"Affinity: it has about {percent:g} % of its keys{share}; the others return with its share."
    load = _load_of_share(case)
    if load is not None and load > 1 + slack_percent / 100:
        return (
            f"Affinity: it has its keys{share}, but {load:.1f} times its share of the requests in flight: above "
            f"{slack_percent:g} % more, requests go to other engines."
        )
    return (
        f"Affinity: it has its keys{share}; beyond {slack_percent:g} % above its share of the requests in flight, "
        "further requests go to other engines."
    )


def _load_of_share(case: _Case) -> float | None:
    """Its requests in flight over its share of the pool's; None without reports, or with few of them."""
    if case.key_share is None or case.pool_traffic is None or case.traffic is None:
        return None
    total = sum(one.in_flight or 0 for one in case.pool_traffic.engines.values())
    even = total * case.key_share.most_percent / 100
    # Envoy rounds the bound up: with fewer in flight one more means nothing.
    return None if even < _FEW_IN_FLIGHT else (case.traffic.in_flight or 0) / even


def _share(share: KeyShare | None) -> str:
    if share is None:
        return ", none of the pool's while its zone has no weight"
    least, most = f"{share.least_percent:.3g}", f"{share.most_percent:.3g}"
    if least == most:
        return f", {least} % of the pool's by weight"
    return f", {least} to {most} % of the pool's by weight and the caller's zone"


def _prefill(key: EngineId, scene: ViewContext) -> Iterator[str]:
    """How decode engines name this prefill engine, or why they do not; nothing for other engines."""
    if scene.policies.pools[key.pool].spec.stage is not Stage.PREFILL:
        return
    found = prefillers(scene.policies, scene.fleet, scene.decisions, key.pool)
    own = next(one for one in found if one.engine.id == key)
    if own.weight <= 0:
        yield f"Prefill: not named to decode engines: {own.why_not or 'its weight is 0'}."
        return
    decoders = [pool for pool, prefill in decode_pools(scene.policies).items() if prefill == key.pool]
    if not decoders:
        yield f"Prefill: no route lets pool {key.pool} prefill."
    for pool in decoders:
        share = named_shares(scene.fleet.pools.get(pool, ()), scene.decisions, found)[key]
        if share.decoders:
            yield (
                f"Prefill: named by {share.decoders} of {share.all_decoders} engines in rotation of pool {pool}, "
                f"for {share.percent:.3g} % of the requests that get a name."
            )
        else:
            yield (
                f"Prefill: named by no engine of pool {pool}: those of its region use other zones, or have "
                f"{MOST_PREFILLERS} others on their lists."
            )


def _sessions(case: _Case) -> str:
    """What becomes of the sessions of routes with strict affinity."""
    match case.decision.health:
        case Health.HEALTHY:
            return "Strict affinity: its sessions stay, and new ones come by load."
        case Health.DRAINING if case.kept_percent:
            return (
                f"Strict affinity: it keeps {case.kept_percent:g} % of its sessions; the others have moved, and "
                "the rest follows within affinity.moveWithin."
            )
        case _:
            return "Strict affinity: its sessions move with their next request, and stay where they are then."


def _failed_requests(decision: EngineDecision, events: Sequence[Event]) -> tuple[str, ...]:
    """IDs of requests that failed before the present state; empty if nothing ejects the engine."""
    if decision.ejector is None:
        return ()
    # Requests of an earlier outage do not explain this one.
    began_s = decision.since_s - _SAME_ROUND_S
    return next((event.requests for event in reversed(events) if event.requests and event.at_s >= began_s), ())


def _calls(traffic: EngineTraffic, resilience: ResilienceSpec) -> str:
    limit = resilience.breaker.error_rate_percent
    text = "No calls in the window"
    if traffic.window_calls:
        ruled = f"the breaker opens at {limit:g} %" if limit else "the breaker is off"
        text = (
            f"{traffic.window_failures} of the last {traffic.window_calls} calls failed "
            f"({_failing(traffic):.0f} %; {ruled})"
        )
        if limit and _failing(traffic) >= limit:
            text += ", including calls while it was hung or dead, which the breaker ignores"
    if traffic.in_flight is not None:
        text += f"; {traffic.in_flight} in flight"
    if traffic.done_per_s:
        text += f"; {traffic.done_per_s:.1f} good answers/s"
    return f"{text}."


def _failing(traffic: EngineTraffic) -> float:
    return 100.0 * traffic.window_failures / traffic.window_calls if traffic.window_calls else 0.0


def _why_not(case: _Case) -> Iterator[str]:
    decision = case.decision
    if decision.health is Health.HEALTHY:
        yield from _why_in(case)
    elif case.report is not None and case.report.verdict.good:
        yield f"Not in rotation despite verdict {case.report.verdict}: {_sentence(decision.reason)}"
    if case.order is not None:
        left = duration_text(case.order.until_s - case.now_s)
        by = f" by {case.order.by}" if case.order.by else ""
        yield f"Operator order{by} in force for {left}: {case.order.action} ({case.order.reason})."
        if case.order.action is OrderAction.RESTORE and decision.health is not Health.HEALTHY:
            yield (
                "The restore order has no effect: a dead, hung, draining or leaving engine stays out of rotation."
            )
    if case.pool_traffic is not None and decision.health is Health.HEALTHY:
        for node, proxy in sorted(case.pool_traffic.proxies.items()):
            missed = proxy.silent.get(case.engine.id.engine)
            if missed:
                yield (
                    f"{node} sends it no requests (its peers got {missed}): ejected by Envoy's outlier "
                    "detection, which ends by itself."
                )


def _why_in(case: _Case) -> Iterator[str]:
    decision, report, traffic = case.decision, case.report, case.traffic
    if decision.floor:
        who = "the evidence is bad" if decision.ejector is None else _EJECTORS[decision.ejector]
        yield f"Kept in rotation by the capacity floor although {who}: {decision.reason}"
    if decision.shadow is not None and decision.shadow.health is not Health.HEALTHY:
        would = f"Without shadow mode it would be {decision.shadow.health}"
        yield f"{would}: {_sentence(decision.shadow.reason)}"
    elif decision.ejector is Ejector.ORCHESTRATOR and not decision.floor:
        yield f"In rotation although its orchestrator reports it unavailable: {_sentence(decision.reason)}"
    elif report is not None and not report.verdict.good and not decision.floor:
        yield f"In rotation despite verdict {report.verdict}: {_sentence(decision.reason)}"
    if traffic is None or not traffic.window_failures or decision.floor or decision.ejector is not None:
        return
    breaker = case.resilience.breaker
    if not breaker.error_rate_percent:
        yield "Some calls fail, but the breaker is off (errorRatePercent 0)."
    elif traffic.window_calls < breaker.min_calls:
        yield f"Some calls fail, but {traffic.window_calls} calls are too few (minCalls {breaker.min_calls})."
    elif _failing(traffic) < breaker.error_rate_percent:
        yield (
            f"Some calls fail, but {_failing(traffic):.0f} % is below errorRatePercent "
            f"{breaker.error_rate_percent:g} %."
        )


def _returns(case: _Case) -> str:
    """What reverses the decision, if the decision does not state it."""
    decision = case.decision
    if decision.health is Health.HEALTHY:
        return ""
    if case.order is not None and case.order.action is not OrderAction.RESTORE:
        return "the order ends, or `switchgear restore`"
    if decision.verdict is Verdict.DRAINING:
        return "the engine restarts, or reports that it no longer drains"
    return "its next good report"


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
