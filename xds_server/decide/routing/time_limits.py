"""Time limits: those of the policy, and for the rest derived ones that only a hung engine misses.

A limit below allowed wait plus longest service cuts healthy work and restarts it, which lengthens the queue, which
cuts more: measured to turn 86 % goodput into 62 %. A limit that is too long only lets a hung engine hold its
requests a little longer, and mostly at proxies that cannot cut. So everything here errs on the long side:

    try          max(1.1 x (W + longest service declared), W + 1.5 x longest answer seen)
    first token  W + max(1 s, stallAfter, 3 x longest wait for a first byte seen)

    by tokens    W + estimated tokens of the request x max(3 x median, p99 of the time between tokens)

``W`` is the wait that the ceiling allows, so overload does not lengthen its own yardstick: longest times are
learned while the pool has room, otherwise less ``W``. Where healthy calls still come near a limit, the promise of
``W`` is broken, and the limit follows their tail instead.

A limit hides what it cuts: longer requests than any before would fail forever, unmeasured. So if most engines of a
pool fail some calls under a derived limit, the limit is doubted and doubled, up to the total. What one engine
alone fails is that engine's fault.

The silence between tokens and the totals always come from the policy, defaults included: no healthy stream was
seen to pause for 30 s, and a total is a promise to the caller, not a measurement. One limit covers all lengths of
answers, unless ``timeouts.nonStreaming.byTokens`` is enabled: then a request that states a limit of tokens has its
own. Its time for a token is that of the engine in the middle, so a slow engine does not lengthen it; each token of
a prompt counts like one of an answer, which takes longer. Without reported call durations nothing is derived, but
limits restored from the last run hold until proxies had time to reconnect and report.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from policies.pool import EnginePoolSpec
from policies.resilience import ResilienceSpec, Timeouts
from policies.resilience.timeouts import TokenTimeouts
from xds_server.decide.decision_memory import LongestCall, TimeLimitMemory
from xds_server.decide.decisions import AdmissionDecision, HedgeDecision, TimeLimits, TokenTimeLimit
from xds_server.model.fleet import Engine
from xds_server.model.memo import reuse_equal
from xds_server.model.pool_traffic import STALE_S, EngineTraffic, LatencyTail, PoolTraffic

MIN_CALLS: Final = 200
"""Healthy calls in the window before anything is derived: of fewer, the longest says little about the next."""

DOWN_INTERVAL_S: Final = 30.0
"""A limit starts, and shrinks, only this long after its last change; it grows at once."""

MOVE: Final = 0.2
"""Relative change that moves a limit."""

REMEMBER_S: Final = 600.0
"""How long the longest call is remembered if no longer one comes."""

_DECLARED_LEEWAY: Final = 1.1
_ANSWERS: Final = 1.5
_FIRST_BYTES: Final = 3.0  # prefill varies more with the prompt's length than an answer with its own
_SHORTEST_FIRST_BYTE_S: Final = 1.0
_LONGEST_PER_MEAN: Final = 4.0  # EnginePool.spec.longestServiceTime: four times serviceTime when absent
_NEAR: Final = 0.95  # at the deepest allowed queue the 99th percentile was 2.9 s with a limit of 3.1 s
_BEYOND_TAIL: Final = 1.5
_CALM: Final = 0.85  # share of slots in use; up to here waiting adds little: a sixth at 80 % load
_NOTICED: Final = 0.1  # smaller relative changes of a longest time are ignored
_CONFIRM_S: Final = REMEMBER_S / 10
_WINDOW_CALLS: Final = 8
_FAILING: Final = 0.02
_DOUBT_INTERVAL_S: Final = 30.0
_WIDEST: Final = 32.0
_CUTTING_PROXY_FACTOR: Final = 3.0
_PER_TOKEN: Final = 3.0  # of the median: batches grow, and prefills of others come between tokens
_STEP_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Derived:
    """A limit that the policy leaves out; None with the reason in ``how``, which then has no live number."""

    limit_s: float | None
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """Measurements for one limit.

    ``longest`` and ``tail`` are of the calls that the limit bounds. ``promised_s`` is the wait that the ceiling
    allows (None: no ceiling in force). ``widened`` is the factor on the sum. ``known``: proxies report call
    durations, or the limit was restored from the last run.
    """

    longest: LongestCall | None
    tail: LatencyTail | None
    promised_s: float | None
    widened: float
    known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounds:
    """The rule for one limit: factor on the longest call, minimum, maximum, and the last limit."""

    factor: float
    least_s: float
    most_s: float
    in_force_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evidence:
    """What a round knows of calls: fresh telemetry, the ceiling, and the times to first token that engines report.

    ``per_token_s``: time for a token, with leeway, of the engine in the middle; None without reports.
    ``shortened``: hedges cut the calls that would have shown their duration. ``obeyed``: the policy enforces
    limits.
    """

    traffic: PoolTraffic | None
    admission: AdmissionDecision | None
    reported_s: float
    per_token_s: float | None
    shortened: bool
    obeyed: bool


def time_limits(
    pool: EnginePoolSpec,
    resilience: ResilienceSpec,
    before: TimeLimitMemory | None,
    *,
    traffic: PoolTraffic | None,
    engines: Sequence[Engine],
    admission: AdmissionDecision | None,
    hedge: HedgeDecision | None,
    now_s: float,
) -> TimeLimitMemory:
    """The limits now; the same ``decided`` as before if nothing changed.

    In shadow mode, and with ``timeouts.adaptive`` false, only those of the policy.
    """
    declared = _as_declared(resilience, now_s)
    if not resilience.timeouts.adaptive:
        limits = replace(declared, reason="from the policy; timeouts.adaptive is false")
        return TimeLimitMemory(decided=_since(before, limits))
    shadow = resilience.shadowed(None)
    memory = _next(
        pool,
        resilience,
        None if before is None else replace(before, decided=before.decided.shadow or before.decided),
        declared,
        _Evidence(
            traffic=None if traffic is None or now_s - traffic.heard_at_s > STALE_S else traffic,
            admission=admission,
            reported_s=_reported_s(engines, now_s) if pool.first_token_gate else 0.0,
            per_token_s=_per_token_s(engines, now_s) if _learns_tokens(resilience.timeouts) else None,
            shortened=hedge is not None and hedge.on,
            obeyed=not shadow,
        ),
        now_s=now_s,
    )
    limits = memory.decided
    if shadow:
        limits = replace(declared, reason=f"from the policy; shadow mode: {limits.reason}", shadow=limits)
    return replace(memory, decided=_since(before, limits))


def _since(before: TimeLimitMemory | None, limits: TimeLimits) -> TimeLimits:
    """``limits``, in force since the last change of one of them."""
    if before is None or _in_force(before.decided) != _in_force(limits):
        return limits
    return reuse_equal(before.decided, replace(limits, since_s=before.decided.since_s))


def limits_for_cutting_proxies(
    limits: TimeLimits, timeouts: Timeouts, *, longest_s: float | None = None
) -> TimeLimits:
    """``limits`` for a proxy that can cut a hung engine's requests on order: derived ones three times as long.

    A verdict ends those calls long before a limit does, so only faults without verdict are left, such as a broken
    path between proxy and engine. In return slow engines keep calls that would be thrown away half done.

    ``longest_s``: the declared longest service. Most of it may be the silence of a prefill, so neither a derived
    limit nor the default for silence is shorter.
    """
    least_s = longest_s or 0.0

    def longer(limit_s: float | None, said_s: float | None, most_s: float) -> float | None:
        if limit_s is None or said_s is not None:
            return limit_s
        longer_s = max(_CUTTING_PROXY_FACTOR * limit_s, least_s)
        return longer_s if not most_s or longer_s < most_s else None

    unary, streaming = timeouts.non_streaming, timeouts.streaming
    by_tokens = limits.by_tokens
    if by_tokens is not None and _learns_tokens(timeouts):
        by_tokens = TokenTimeLimit(
            wait_s=by_tokens.wait_s, per_token_s=_CUTTING_PROXY_FACTOR * by_tokens.per_token_s
        )
    return replace(
        limits,
        by_tokens=by_tokens,
        per_try_s=longer(limits.per_try_s, unary.per_try, limits.total_s),
        first_token_s=longer(limits.first_token_s, streaming.first_token, limits.stream_total_s),
        between_tokens_s=limits.between_tokens_s
        if limits.between_tokens_s is None or "between_tokens" in streaming.model_fields_set
        else max(limits.between_tokens_s, least_s),
    )


def limits_due_s(memory: TimeLimitMemory, now_s: float) -> float:
    """When to decide again without new evidence: a limit may shrink or end; infinite if none may."""
    limits = memory.decided.shadow or memory.decided
    dues_s = (limits.since_s + DOWN_INTERVAL_S, memory.restored_until_s)
    return min((due_s for due_s in dues_s if due_s is not None and due_s > now_s), default=math.inf)


def _learns_tokens(timeouts: Timeouts) -> bool:
    by_tokens = timeouts.non_streaming.by_tokens
    return by_tokens.enabled and by_tokens.per_token is None


def _as_declared(resilience: ResilienceSpec, now_s: float) -> TimeLimits:
    streaming, unary = resilience.timeouts.streaming, resilience.timeouts.non_streaming
    by_tokens = unary.by_tokens
    return TimeLimits(
        by_tokens=TokenTimeLimit(wait_s=resilience.limits.max_wait, per_token_s=by_tokens.per_token)
        if by_tokens.enabled and by_tokens.per_token is not None
        else None,
        first_token_s=streaming.first_token or None,
        between_tokens_s=streaming.between_tokens or None,
        stream_total_s=streaming.total,
        per_try_s=unary.per_try or None,
        total_s=unary.total,
        reason="",
        since_s=now_s,
    )


def _next(
    pool: EnginePoolSpec,
    resilience: ResilienceSpec,
    before: TimeLimitMemory | None,
    declared: TimeLimits,
    seen: _Evidence,
    *,
    now_s: float,
) -> TimeLimitMemory:
    traffic, admission = seen.traffic, seen.admission
    calm = admission is not None and admission.utilization is not None and admission.utilization < _CALM
    promised_s = admission.wait_s if admission is not None and admission.in_force else None
    answer, first_byte = (None, None) if before is None else (before.answer, before.first_byte)
    # Even with telemetry: the first proxy to reconnect, silent for a moment, is not all of them.
    left_until_s = None if before is None else before.restored_until_s
    if left_until_s is not None and now_s >= left_until_s:
        left_until_s = None
    if traffic is not None:
        wait_s = 0.0 if calm or promised_s is None else promised_s
        keep = seen.shortened or not calm
        answer = _longest(answer, traffic.answer, wait_s, keep=keep, now_s=now_s)
        first_byte = _longest(first_byte, traffic.first_byte, wait_s, keep=keep, now_s=now_s)
    widened, doubted_at_s = _widened(resilience, before, traffic, obeyed=seen.obeyed, now_s=now_s)
    declared_s = pool.longest_service_time or _LONGEST_PER_MEAN * pool.service_time
    last = None if before is None else before.decided
    measured = _Measured(
        longest=answer,
        tail=None if traffic is None else traffic.answer,
        promised_s=promised_s,
        widened=widened,
        known=traffic is not None or left_until_s is not None,
    )
    per_try = _derived(
        measured,
        _Bounds(
            factor=_ANSWERS,
            least_s=_DECLARED_LEEWAY * ((promised_s or 0.0) + declared_s),
            most_s=declared.total_s,
            in_force_s=None if last is None else last.per_try_s,
        ),
    )
    first_token = _derived(
        replace(measured, longest=first_byte, tail=None if traffic is None else traffic.first_byte),
        _Bounds(
            factor=_FIRST_BYTES,
            least_s=(promised_s or 0.0)
            + max(_SHORTEST_FIRST_BYTE_S, pool.probe.step_s, _FIRST_BYTES * seen.reported_s),
            most_s=declared.stream_total_s,
            in_force_s=None if last is None else last.first_token_s,
        ),
    )
    if not pool.first_token_gate:
        first_token = _Derived(limit_s=None, how="without the gate Envoy sees no first token")
    unary, streaming = resilience.timeouts.non_streaming, resilience.timeouts.streaming
    since_s = now_s if last is None else last.since_s
    limits = replace(
        declared,
        per_try_s=declared.per_try_s
        if unary.per_try is not None
        else _steadied(None if last is None else last.per_try_s, per_try, since_s, now_s, admission),
        first_token_s=declared.first_token_s
        if streaming.first_token is not None
        else _steadied(None if last is None else last.first_token_s, first_token, since_s, now_s, admission),
        by_tokens=_by_tokens(
            resilience.timeouts, declared, last, seen, promised_s=promised_s, widened=widened, now_s=now_s
        ),
    )
    parts = (
        _sentence("perTry", limits.per_try_s, per_try, given=unary.per_try is not None),
        _sentence("firstToken", limits.first_token_s, first_token, given=streaming.first_token is not None),
        *([_sentence_of_tokens(limits.by_tokens, unary.by_tokens)] if unary.by_tokens.enabled else []),
    )
    reason = "; ".join(parts)
    if last is None or _in_force(last) != _in_force(limits):
        limits = replace(limits, reason=reason)
    else:
        # Numbers in a reason are from when a limit changed; live ones would change every round.
        kept = all(part in last.reason for part in parts if " off" in part)
        limits = replace(limits, since_s=last.since_s, reason=last.reason if kept else reason)
    return TimeLimitMemory(
        decided=limits,
        answer=answer,
        first_byte=first_byte,
        widened=widened,
        doubted_at_s=doubted_at_s,
        restored_until_s=left_until_s,
    )


def _longest(
    known: LongestCall | None, tail: LatencyTail | None, wait_s: float, *, keep: bool, now_s: float
) -> LongestCall | None:
    """The longest time of healthy calls, less ``wait_s`` for a slot; ``keep``: nothing is forgotten now."""
    if tail is None or tail.calls < MIN_CALLS:
        return known
    # If the longest is not reported, use twice the 99th percentile.
    seen_s = tail.longest_s or 2 * tail.p99_s
    if known is None:
        return LongestCall(time_s=seen_s, seen_at_s=now_s)
    fresh_s = seen_s - wait_s
    if fresh_s > known.time_s * (1 + _NOTICED):
        return LongestCall(time_s=fresh_s, seen_at_s=now_s)
    if keep:
        return known
    if fresh_s >= known.time_s * (1 - _NOTICED):
        again = now_s - known.seen_at_s >= _CONFIRM_S
        return LongestCall(time_s=known.time_s, seen_at_s=now_s) if again else known
    forgotten = now_s - known.seen_at_s >= REMEMBER_S
    return LongestCall(time_s=fresh_s, seen_at_s=now_s) if forgotten else known


def _widened(
    resilience: ResilienceSpec,
    before: TimeLimitMemory | None,
    traffic: PoolTraffic | None,
    *,
    obeyed: bool,
    now_s: float,
) -> tuple[float, float | None]:
    """The factor by which limits exceed their formula, and when they were last doubted."""
    if before is None or not obeyed:
        return 1.0, None
    timeouts, doubted_at_s, last = resilience.timeouts, before.doubted_at_s, before.decided
    derived = (
        (timeouts.non_streaming.per_try is None and last.per_try_s is not None)
        or (timeouts.streaming.first_token is None and last.first_token_s is not None)
        or (_learns_tokens(timeouts) and last.by_tokens is not None)
    )
    due = doubted_at_s is None or now_s - doubted_at_s >= _DOUBT_INTERVAL_S
    if derived and due and traffic is not None and _most_engines_fail(traffic.engines.values()):
        return min(2 * before.widened, _WIDEST), now_s
    if doubted_at_s is not None and now_s - doubted_at_s >= REMEMBER_S:
        return 1.0, None
    return before.widened, doubted_at_s


def _most_engines_fail(engines: Iterable[EngineTraffic]) -> bool:
    heard = [one for one in engines if one.window_calls >= _WINDOW_CALLS]
    failing = sum(one.window_failures >= _FAILING * one.window_calls and one.window_failures > 0 for one in heard)
    return failing > len(heard) / 2


def _derived(seen: _Measured, bounds: _Bounds) -> _Derived:
    longest, tail, promised_s = seen.longest, seen.tail, seen.promised_s
    if promised_s is None:
        return _Derived(limit_s=None, how="no admission limit in force, so the wait is unbounded")
    if not seen.known:
        return _Derived(limit_s=None, how="no call durations reported")
    if longest is None:
        return _Derived(limit_s=None, how=f"fewer than {MIN_CALLS} healthy calls")
    limit_s = max(bounds.least_s, promised_s + bounds.factor * longest.time_s)
    measured = f"{promised_s:.3g} s wait + {bounds.factor:g} x {longest.time_s:.3g} s"
    how = f"the longer of {bounds.least_s:.3g} s (declared) and {measured} (measured)"
    # The limit in force counts, too: it cuts longer calls, so a measured tail never quite reaches it.
    near_s = _NEAR * min(limit_s, bounds.in_force_s or limit_s)
    if tail is not None and tail.p99_s > near_s and _BEYOND_TAIL * tail.p99_s > limit_s:
        limit_s = _BEYOND_TAIL * tail.p99_s
        how = f"{_BEYOND_TAIL:g} x {tail.p99_s:.3g} s, because calls exceed the allowed wait"
    if seen.widened > 1:
        limit_s *= seen.widened
        how += f", x {seen.widened:g} because most engines failed calls under it"
    limit_s = _STEP_S * math.ceil(limit_s / _STEP_S)
    if bounds.most_s and limit_s >= bounds.most_s:
        return _Derived(limit_s=None, how="the total is shorter")
    return _Derived(limit_s=limit_s, how=how)


def _steadied(
    old_s: float | None, derived: _Derived, since_s: float, now_s: float, admission: AdmissionDecision | None
) -> float | None:
    new_s = derived.limit_s
    # Without an engine in rotation the wait is unknown.
    rested = now_s - since_s >= DOWN_INTERVAL_S and admission is not None and admission.slots > 0
    if new_s is None or old_s is None:
        return new_s if new_s is None or rested else None
    if new_s > old_s * (1 + MOVE) or (rested and new_s < old_s * (1 - MOVE)):
        return new_s
    return old_s


def _by_tokens(
    timeouts: Timeouts,
    declared: TimeLimits,
    last: TimeLimits | None,
    seen: _Evidence,
    *,
    promised_s: float | None,
    widened: float,
    now_s: float,
) -> TokenTimeLimit | None:
    """The limit by tokens: declared, or measured; without fresh reports the last one."""
    if declared.by_tokens is not None:
        return declared.by_tokens if promised_s is None else replace(declared.by_tokens, wait_s=promised_s)
    if not _learns_tokens(timeouts) or promised_s is None:
        return None
    known = None if last is None else last.by_tokens
    if seen.per_token_s is None:
        return known
    fresh = TokenTimeLimit(wait_s=promised_s, per_token_s=widened * seen.per_token_s)
    if known is None or last is None:
        return fresh
    pairs = ((known.wait_s, fresh.wait_s), (known.per_token_s, fresh.per_token_s))
    grows = any(now > was * (1 + MOVE) for was, now in pairs)
    shrinks = any(now < was * (1 - MOVE) for was, now in pairs)
    return fresh if grows or (shrinks and now_s - last.since_s >= DOWN_INTERVAL_S) else known


def _sentence_of_tokens(limit: TokenTimeLimit | None, policy: TokenTimeouts) -> str:
    if limit is None:
        return "byTokens off: no admission limit in force, or no engine reports times between tokens"
    how = "measured" if policy.per_token is None else "from the policy"
    sum_s = f"{limit.wait_s:.3g} s + {1000 * limit.per_token_s:.3g} ms a token"
    return f"byTokens {sum_s} ({how}), at least {policy.min:g} s"


def _in_force(limits: TimeLimits) -> tuple[object, ...]:
    return (
        limits.by_tokens,
        limits.first_token_s,
        limits.between_tokens_s,
        limits.stream_total_s,
        limits.per_try_s,
        limits.total_s,
    )


def _sentence(name: str, limit_s: float | None, derived: _Derived, *, given: bool) -> str:
    if given:
        return f"{name} from the policy"
    if limit_s is not None:
        return f"{name} {limit_s:.4g} s: {derived.how}"
    return f"{name} off: {derived.how if derived.limit_s is None else 'being measured'}"


def _per_token_s(engines: Sequence[Engine], now_s: float) -> float | None:
    """Time for a token, with leeway, of the engine in the middle; the slower one of two."""
    found = sorted(
        max(_PER_TOKEN * seen.p50_s, seen.p99_s)
        for engine in engines
        if engine.report is not None
        and (seen := engine.report.time_per_output_token) is not None
        and seen.p50_s > 0
        and engine.received_at_s is not None
        and now_s - engine.received_at_s <= STALE_S
    )
    return found[len(found) // 2] if found else None


def _reported_s(engines: Sequence[Engine], now_s: float) -> float:
    """The longest 99th percentile of time to first token that engines report; 0 without reports."""
    return max(
        (
            engine.report.time_to_first_token.p99_s
            for engine in engines
            if engine.report is not None
            and engine.report.time_to_first_token is not None
            and engine.received_at_s is not None
            and now_s - engine.received_at_s <= STALE_S
        ),
        default=0.0,
    )
