"""Explanation of a pool or zone: ejected engines, admission limit, refusals, degradation level, zone weights."""

from collections.abc import Iterator, Sequence

from xds_server.admin.views.context import UnknownNameError, ViewContext, event_status, rule_status
from xds_server.admin.views.why_engine import MOST_PAST
from xds_server.admin_api.objective_types import OBJECTIVE_TROUBLES, objective_sentence
from xds_server.admin_api.status_types import Explanation, RuleStatus
from xds_server.decide.decisions import AdmissionDecision, DeadlineDecision, Health, PoolDecisions
from xds_server.decide.diff import policy_fields
from xds_server.model.order import pool_key
from xds_server.model.pool_traffic import PoolTraffic, PrefillUse
from xds_server.model.text import duration_text
from xds_server.telemetry.token_use import TokenRatios
from xds_server.translate.affinity import slack_by_pool
from xds_server.translate.engine_selection import adapters_by_pool
from xds_server.translate.key_shares import keys_away
from xds_server.translate.prefillers import decode_pools, prefillers

_MOST_NAMED = 5


def why_pool(name: str, scene: ViewContext) -> Explanation:
    """Explain this pool; ``UnknownNameError`` before its first decision."""
    pool = scene.decisions.pools.get(name)
    if pool is None:
        raise UnknownNameError(f"no decision on pool {name} yet")
    level = 0 if pool.degradation is None else pool.degradation.level
    admission = pool.admission
    pressed = admission is not None and admission.pressure is not None and admission.pressure > 1.0
    out = [key.engine for key, one in pool.engines.items() if one.health is not Health.HEALTHY]
    total = len(pool.engines)
    rules = [
        policy_fields.MAX_WAIT,
        *([policy_fields.degradation_rule(level)] if level else []),
        *([policy_fields.FLOOR] if out else []),
    ]
    text = f"{total - len(out)} of {total} engines of pool {name} are in rotation"
    if level:
        text += f"; degradation level {level}"
    if pressed:
        text += "; demand above capacity"
    events = scene.event_store.related(pool=name)
    return Explanation(
        subject=name,
        kind="pool",
        well=not out and not level and not pressed,
        now=f"{text}.",
        because=tuple(_pool_because(name, pool, out, scene)),
        why_not=tuple(_pool_why_not(pool)),
        ruled_by=_rules(rules, name, scene),
        returns=_returns(pool) if level else "",
        past=tuple(event_status(event, scene.now) for event in reversed(events[-MOST_PAST:])),
    )


def _pool_because(name: str, pool: PoolDecisions, out: Sequence[str], scene: ViewContext) -> Iterator[str]:
    if out:
        yield f"Not in rotation: {_named(out)} (see `switchgear why ENGINE`)."
    if pool.admission is None:
        for role, limit in sorted(pool.ceilings.items()):
            yield (
                f"Admission limit of each {role}: {limit.interactive} interactive, {limit.batch} batch: "
                f"{limit.reason}."
            )
    else:
        yield from _ceiling(pool.admission, scene.fleet.traffic.get(name))
    engines = scene.fleet.pools.get(name, ())
    loaded = {one.name: one.engines or len(engines) for one in scene.policies.pools[name].spec.adapters}
    for adapter in sorted({one.adapter for one in adapters_by_pool(scene.policies).get(name, ())} | set(loaded)):
        have = sum(engine.may_have(adapter) for engine in engines)
        wanted = f", {loaded[adapter]} wanted" if adapter in loaded else ""
        yield f"Adapter {adapter}: on {have} of {len(engines)} engines{wanted}."
        if trouble := scene.adapter_troubles.get((name, adapter)):
            yield f"Adapter {adapter} was not loaded: {trouble}."
    yield from _prefill(name, scene)
    if name in slack_by_pool(scene.policies.routes):
        yield _affinity(pool)
    order = scene.orders.get(pool_key(name))
    if order is not None:
        by = f" by {order.by}" if order.by else ""
        left = duration_text(order.until_s - scene.now.s)
        yield f"Operator order{by} in force for {left}: {order.effect} ({order.reason})."
    if pool.degradation is not None:
        since = duration_text(scene.now.s - pool.degradation.since_s)
        yield f"Degradation level {pool.degradation.level} for {since}: {pool.degradation.reason}."
        yield from _static_answers(name, pool.degradation.acting_level, len(out) == len(pool.engines), scene)
    for one in scene.objectives():
        if name in one.pools and one.state in OBJECTIVE_TROUBLES:
            sentence = objective_sentence(one)
            yield f"{sentence[0].upper()}{sentence[1:]}."
    yield from _limits_of_requests(pool)
    ratios = scene.token_ratios().get(name)
    if ratios is not None:
        yield _token_ratios(ratios)


def _token_ratios(ratios: TokenRatios) -> str:
    """What requests really cost, and which estimates fit."""
    engines = "1 engine" if ratios.engines == 1 else f"{ratios.engines} engines"
    size, answer = max(1, round(ratios.bytes_per_token)), max(1, round(ratios.answer_tokens))
    return (
        f"Tokens: a token of a prompt has {ratios.bytes_per_token:.3g} bytes of the body, and answers use "
        f"{ratios.answer_share:.0%} of the tokens that requests ask for, {ratios.answer_tokens:.0f} on average "
        f"(counters of {engines}, {ratios.requests:.0f} recent requests). Tenants' bytesPerToken {size} and "
        f"answerTokens {answer} would fit."
    )


def _affinity(pool: PoolDecisions) -> str:
    """How many keys of affinity are with another engine, and whose they are."""
    away = keys_away(pool.declared, pool)
    if not away:
        return "Affinity: all keys are with their engines."
    return (
        f"Affinity: about {sum(away.values()):.3g} % of the keys are with other engines than usual: those of "
        f"{_named(list(away))}."
    )


def _limits_of_requests(pool: PoolDecisions) -> Iterator[str]:
    if pool.hedge is not None:
        yield f"Hedging: {pool.hedge.reason}."
    if pool.retries is not None:
        statuses = ", ".join(map(str, pool.retries.statuses)) or "none"
        yield f"Retried statuses: {statuses} ({pool.retries.reason})."
    if pool.large_retries is not None:
        yield f"Retries of large requests: {pool.large_retries.reason}."
    if pool.limits is not None:
        yield f"Timeouts: {pool.limits.reason}."
    if pool.deadline is not None:
        yield _deadlines(pool.deadline)


def _deadlines(decision: DeadlineDecision) -> str:
    """The deadlines that listeners with ``deadline.mode: enforce`` refuse."""
    refused = [
        f"below {steps.refused_below_s:.2g} s for {what}"
        for what, steps in (("answers", decision.answer), ("streams", decision.stream))
        if steps is not None and steps.refused_below_s is not None
    ]
    return f"Refused deadlines: {', '.join(refused) or 'none'} ({decision.reason})."


def _static_answers(name: str, level: int, empty: bool, scene: ViewContext) -> Iterator[str]:
    """Routes to this pool first that answer without an engine now."""
    for route, document in scene.policies.routes.items():
        answer = document.spec.static_answer
        if answer is None or document.spec.pools[0].pool != name:
            continue
        if answer.applies_at(level):
            yield f"Route {route} gives its static answer ({answer.status}) from level {answer.from_level} on."
        elif answer.when_lost and empty:
            yield (
                f"Route {route} gives its static answer ({answer.status}) to requests "
                "that no other pool may serve."
            )


def _prefill(name: str, scene: ViewContext) -> Iterator[str]:
    """Which engines prefill for this decode pool, or for which pools this prefill pool does."""
    of_decode = decode_pools(scene.policies)
    served = sorted(decode for decode, prefill in of_decode.items() if prefill == name)
    if served:
        yield f"Prefills for pool {', '.join(served)}."
    prefill = of_decode.get(name, "") or (name if served else "")
    if not prefill:
        if name in of_decode:
            yield "No route to this pool has prefill: its engines prefill themselves."
        return
    found = prefillers(scene.policies, scene.fleet, scene.decisions, prefill)
    usable = sum(one.weight > 0 for one in found)
    text = f"Prefill: {usable} of {len(found)} engines of pool {prefill} are named to decode engines"
    yield f"{text}." if usable else f"{text}; decode engines prefill themselves."
    for decode in served or [name]:
        traffic = scene.fleet.traffic.get(decode)
        if traffic is not None and traffic.prefill is not None:
            yield f"{f'Pool {decode}: a' if served else 'A'}{_prefill_use(traffic.prefill)}"
        decided = scene.decisions.pools.get(decode)
        if decided is not None and decided.prefill is not None:
            since = duration_text(scene.now.s - decided.prefill.since_s)
            yield (
                f"{f'Pool {decode}: named' if served else 'Named'} to {decided.prefill.named_percent:g} % of "
                f"requests for {since}: {decided.prefill.reason}."
            )
    for one in [one for one in found if one.why_not][:_MOST_NAMED]:
        yield f"- {one.engine.id.engine} is not named: {one.why_not}."


def _prefill_use(use: PrefillUse) -> str:
    whole = use.named + use.local
    text = (
        f" prefill engine was named for {100 * use.named_ratio:.0f} % of {whole:.0f} requests of the last minute"
    )
    first = [
        f"{tail.p50_s:.2g} s {what} ({tail.calls} streams)"
        for what, tail in (("with a name", use.named_first_byte), ("without", use.local_first_byte))
        if tail is not None
    ]
    return f"{text}; median first byte {', '.join(first)}." if first else f"{text}."


def _returns(pool: PoolDecisions) -> str:
    if pool.degradation is not None and pool.degradation.ordered:
        return "the order ends, or `switchgear restore POOL`"
    return "pressure stays low for degradation.leaveAfter"


def _ceiling(admission: AdmissionDecision, traffic: PoolTraffic | None) -> Iterator[str]:
    yield (
        f"Admission limit: {admission.total + admission.held} requests in flight "
        f"({admission.total} for engines in rotation, {admission.held} held by ejected engines): "
        f"{admission.reason}."
    )
    if admission.pressure is not None:
        used = (
            "" if admission.utilization is None else f"; {100 * admission.utilization:.0f} % of its slots in use"
        )
        yield f"Demand: {100 * admission.pressure:.0f} % of the capacity in rotation{used}."
    for node, part in sorted(admission.by_proxy.items()):
        proxy = None if traffic is None else traffic.proxies.get(node)
        shed = {} if proxy is None else {str(key): one for key, one in proxy.shed_per_s.items() if one > 0}
        refused = ", ".join(f"{one:.1f} {key}" for key, one in sorted(shed.items()))
        suffix = f"; refusing {refused} per second" if refused else "; refusing none"
        yield f"- {node}: {part.interactive} interactive, {part.batch} batch{suffix}."


def _pool_why_not(pool: PoolDecisions) -> Iterator[str]:
    kept = [key.engine for key, one in pool.engines.items() if one.floor]
    if kept:
        yield f"Kept in rotation by the capacity floor despite bad evidence: {_named(kept)}."
    shadowed = [
        key.engine
        for key, one in pool.engines.items()
        if one.shadow is not None and one.shadow.health is not Health.HEALTHY and one.health is Health.HEALTHY
    ]
    if shadowed:
        yield f"Without shadow mode these would be ejected: {_named(shadowed)}."
    if pool.admission is not None and not pool.admission.in_force:
        yield "The admission limit is in shadow mode: no request is refused because of it."


def why_zone(zone: str, scene: ViewContext) -> Explanation:
    """Explain this zone across all pools with engines or callers in it."""
    because: list[str] = []
    total = missing = 0
    ruling: list[RuleStatus] = []
    for name, pool in scene.decisions.pools.items():
        here = [engine.id for engine in pool.declared if engine.zone == zone]
        decided = [(key, pool.engines[key]) for key in here if key in pool.engines]
        out = [key.engine for key, one in decided if one.health is not Health.HEALTHY]
        total, missing = total + len(decided), missing + len(out)
        if decided:
            suffix = f"; not in rotation: {_named(out)}" if out else ""
            because.append(
                f"Pool {name}: {len(decided) - len(out)} of {len(decided)} engines in rotation{suffix}."
            )
        if zone in pool.zones:
            shares = pool.zones[zone]
            whole = sum(shares.weights.values()) or 1
            parts = ", ".join(
                f"{to or 'no zone'} {100 * one / whole:.0f} %" for to, one in sorted(shares.weights.items())
            )
            because.append(f"Calls from here to {name}: {parts}: {shares.reason}.")
            ruling.extend(_rules([policy_fields.ZONES], name, scene))
    events = scene.event_store.related(zone=zone)
    return Explanation(
        subject=zone,
        kind="zone",
        well=not missing,
        now=f"{total - missing} of {total} engines of zone {zone} are in rotation.",
        because=tuple(because),
        ruled_by=tuple(dict.fromkeys(ruling)),
        past=tuple(event_status(event, scene.now) for event in reversed(events[-MOST_PAST:])),
    )


def _rules(rules: Sequence[str], pool: str, scene: ViewContext) -> tuple[RuleStatus, ...]:
    found = [rule_status(rule, pool, scene.policies) for rule in rules]
    return tuple(dict.fromkeys(one for one in found if one is not None))


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
