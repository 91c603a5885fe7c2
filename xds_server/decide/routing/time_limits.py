"""Time limits: what the policy says, and for what it leaves out, limits that only a hung engine can miss.

A limit below allowed wait plus longest service throws healthy work away and begins it again, which makes the queue
longer, which ends more of it: seen to turn 86 % goodput into 62 %. A limit too long only lets a hung engine hold
its requests a little longer, and mostly at proxies that cannot cut. So everything here leans towards too long:

    try          max(1.1 x (W + longest service declared), W + 1.5 x longest answer seen)
    first token  W + max(1 s, stallAfter, 3 x longest wait for a first byte seen)

``W`` is the wait the ceiling allows, so waiting under overload does not lengthen what it is measured by: longest
times are learned while the pool has room, and otherwise less ``W``. Where healthy calls come near a limit all the
same, the promise of ``W`` is not being kept, and the limit follows their tail instead.

A limit hides what it ends: requests longer than any before it fail for ever, and are never measured. So where most
engines of a pool fail some calls while a derived limit is in force, the limit is doubted and doubled, until it
is as long as the total. What one engine alone fails is that engine's doing.

Silence between tokens and the totals are always the policy's, defaults included: no healthy stream was seen to
pause for 30 s, and a total is a promise to the caller, not a measurement. There is one limit for all lengths of
answer. Where nobody tells how long calls take, nothing is derived; but limits that the last run of the server left
hold until proxies had time to come back and tell.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from policies.pool import EnginePoolSpec
from policies.resilience import ResilienceSpec, Timeouts
from xds_server.decide.decisions import AdmissionDecision, HedgeDecision, LongestCall, TimeLimits
from xds_server.model.fleet import Engine
from xds_server.model.pool_traffic import STALE_S, EngineTraffic, LatencyTail, PoolTraffic

MIN_CALLS: Final = 200
"""Healthy calls of the window before anything is derived: of fewer, the longest says little about the next."""

DOWN_INTERVAL_S: Final = 30.0
"""A limit begins, and shrinks, no sooner than so long after the last change; it grows at once."""

MOVE: Final = 0.2
"""A limit moves by more than this share of itself."""

REMEMBER_S: Final = 600.0
"""How long the longest call is remembered when none as long comes again."""

_DECLARED_LEEWAY: Final = 1.1
_ANSWERS: Final = 1.5
_FIRST_BYTES: Final = 3.0  # a prefill varies with the length of the prompt more than an answer with its own
_SHORTEST_FIRST_BYTE_S: Final = 1.0
_LONGEST_PER_MEAN: Final = 4.0  # EnginePool.spec.longestServiceTime: four times serviceTime when absent
_NEAR: Final = 0.95  # under the deepest queue allowed the 99th percentile was 2.9 s, where a limit is 3.1 s
_BEYOND_TAIL: Final = 1.5
_CALM: Final = 0.85  # share of slots in use; up to here waiting adds little, and at 80 % load a sixth
_NOTICED: Final = 0.1  # a longest time that differs by less is the same
_CONFIRM_S: Final = REMEMBER_S / 10
_WINDOW_CALLS: Final = 8
_FAILING: Final = 0.02
_DOUBT_INTERVAL_S: Final = 30.0
_WIDEST: Final = 32.0
_CUTTING_PROXY_FACTOR: Final = 3.0
_STEP_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Derived:
    """A limit that the policy leaves out; None with the reason in ``how``, which then names no live number."""

    limit_s: float | None
    how: str


def time_limits(
    pool: EnginePoolSpec,
    resilience: ResilienceSpec,
    before: TimeLimits | None,
    *,
    traffic: PoolTraffic | None,
    engines: Sequence[Engine],
    admission: AdmissionDecision | None,
    hedge: HedgeDecision | None,
    now_s: float,
) -> TimeLimits:
    """The limits now; the very same object as before where nothing became different.

    In shadow mode, and with ``timeouts.adaptive`` false, they are what the policy says and nothing else.
    """
    said = _as_declared(resilience, now_s)
    if not resilience.timeouts.adaptive:
        limits = replace(said, reason="as the policy says; timeouts.adaptive is false")
        return _since(before, limits)
    shadow = resilience.shadowed(None)
    limits = _next(
        pool,
        resilience,
        before.shadow or before if before is not None else None,
        said,
        tells=None if traffic is None or now_s - traffic.heard_at_s > STALE_S else traffic,
        admission=admission,
        reported_s=_reported_s(engines, now_s) if pool.first_token_gate else 0.0,
        # A hedge ends the calls that would have shown how long they take.
        shortened=hedge is not None and hedge.on,
        obeyed=not shadow,
        now_s=now_s,
    )
    if shadow:
        limits = replace(said, reason=f"as the policy says; shadow: {limits.reason}", shadow=limits)
    return _since(before, limits)


def _since(before: TimeLimits | None, limits: TimeLimits) -> TimeLimits:
    """``limits``, in force since the last change of one of them."""
    if before is None or _in_force(before) != _in_force(limits):
        return limits
    kept = replace(limits, since_s=before.since_s)
    return before if kept == before else kept


def limits_for_cutting_proxies(limits: TimeLimits, timeouts: Timeouts) -> TimeLimits:
    """``limits`` for a proxy that can be told to end what a hung engine holds: derived ones three times as long.

    A verdict ends those calls long before a limit does, so a limit is left with what no verdict sees: a proxy's
    own broken way to an engine. In exchange it spares slow engines, whose calls would be thrown away half done.
    """

    def longer(limit_s: float | None, said_s: float | None, most_s: float) -> float | None:
        if limit_s is None or said_s is not None:
            return limit_s
        return _CUTTING_PROXY_FACTOR * limit_s if not most_s or _CUTTING_PROXY_FACTOR * limit_s < most_s else None

    unary, streaming = timeouts.non_streaming, timeouts.streaming
    return replace(
        limits,
        per_try_s=longer(limits.per_try_s, unary.per_try, limits.total_s),
        first_token_s=longer(limits.first_token_s, streaming.first_token, limits.stream_total_s),
    )


def limits_due_s(limits: TimeLimits, now_s: float) -> float:
    """When to ask again though nothing new is heard: a limit may shrink, or end; infinite where none may."""
    limits = limits.shadow or limits
    dues_s = (limits.since_s + DOWN_INTERVAL_S, limits.remembered_until_s)
    return min((due_s for due_s in dues_s if due_s is not None and due_s > now_s), default=math.inf)


def _as_declared(resilience: ResilienceSpec, now_s: float) -> TimeLimits:
    streaming, unary = resilience.timeouts.streaming, resilience.timeouts.non_streaming
    return TimeLimits(
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
    before: TimeLimits | None,
    said: TimeLimits,
    *,
    tells: PoolTraffic | None,
    admission: AdmissionDecision | None,
    reported_s: float,
    shortened: bool,
    obeyed: bool,
    now_s: float,
) -> TimeLimits:
    calm = admission is not None and admission.utilization is not None and admission.utilization < _CALM
    promised_s = admission.wait_s if admission is not None and admission.in_force else None
    answer, first_byte = (None, None) if before is None else (before.answer, before.first_byte)
    # Also when somebody tells: who is first back, and silent again for a moment, does not speak for all.
    left_until_s = None if before is None else before.remembered_until_s
    if left_until_s is not None and now_s >= left_until_s:
        left_until_s = None
    told = tells is not None or left_until_s is not None
    if tells is not None:
        wait_s = 0.0 if calm or promised_s is None else promised_s
        keep = shortened or not calm
        answer = _longest(answer, tells.answer, wait_s, keep=keep, now_s=now_s)
        first_byte = _longest(first_byte, tells.first_byte, wait_s, keep=keep, now_s=now_s)
    widened, doubted_at_s = _widened(resilience, before, tells, obeyed=obeyed, now_s=now_s)
    declared_s = pool.longest_service_time or _LONGEST_PER_MEAN * pool.service_time
    per_try = _derived(
        answer,
        None if tells is None else tells.answer,
        promised_s,
        factor=_ANSWERS,
        least_s=_DECLARED_LEEWAY * ((promised_s or 0.0) + declared_s),
        most_s=said.total_s,
        widened=widened,
        in_force_s=None if before is None else before.per_try_s,
        told=told,
    )
    first_token = _derived(
        first_byte,
        None if tells is None else tells.first_byte,
        promised_s,
        factor=_FIRST_BYTES,
        least_s=(promised_s or 0.0)
        + max(_SHORTEST_FIRST_BYTE_S, pool.probe.stall_after, _FIRST_BYTES * reported_s),
        most_s=said.stream_total_s,
        widened=widened,
        in_force_s=None if before is None else before.first_token_s,
        told=told,
    )
    if not pool.first_token_gate:
        first_token = _Derived(limit_s=None, how="without the gate Envoy sees no first token")
    unary, streaming = resilience.timeouts.non_streaming, resilience.timeouts.streaming
    since_s = now_s if before is None else before.since_s
    limits = replace(
        said,
        answer=answer,
        first_byte=first_byte,
        widened=widened,
        doubted_at_s=doubted_at_s,
        remembered_until_s=left_until_s,
        per_try_s=said.per_try_s
        if unary.per_try is not None
        else _steadied(None if before is None else before.per_try_s, per_try, since_s, now_s, admission),
        first_token_s=said.first_token_s
        if streaming.first_token is not None
        else _steadied(None if before is None else before.first_token_s, first_token, since_s, now_s, admission),
    )
    parts = (
        _sentence("perTry", limits.per_try_s, per_try, given=unary.per_try is not None),
        _sentence("firstToken", limits.first_token_s, first_token, given=streaming.first_token is not None),
    )
    reason = "; ".join(parts)
    if before is None or _in_force(before) != _in_force(limits):
        return replace(limits, reason=reason)
    # Numbers in a reason are those of the moment at which a limit changed; those of every round would never rest.
    kept = all(part in before.reason for part in parts if " off" in part)
    return replace(limits, since_s=before.since_s, reason=before.reason if kept else reason)


def _longest(
    known: LongestCall | None, tail: LatencyTail | None, wait_s: float, *, keep: bool, now_s: float
) -> LongestCall | None:
    """The longest time of healthy calls, ``wait_s`` for a slot taken off; ``keep``: nothing is forgotten now."""
    if tail is None or tail.calls < MIN_CALLS:
        return known
    # Where the longest is not told, twice the 99th percentile has to do.
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
    before: TimeLimits | None,
    tells: PoolTraffic | None,
    *,
    obeyed: bool,
    now_s: float,
) -> tuple[float, float | None]:
    """By how much limits are wider than their formula asks for, and when they were last doubted."""
    if before is None or not obeyed:
        return 1.0, None
    timeouts, doubted_at_s = resilience.timeouts, before.doubted_at_s
    derived = (timeouts.non_streaming.per_try is None and before.per_try_s is not None) or (
        timeouts.streaming.first_token is None and before.first_token_s is not None
    )
    due = doubted_at_s is None or now_s - doubted_at_s >= _DOUBT_INTERVAL_S
    if derived and due and tells is not None and _most_engines_fail(tells.engines.values()):
        return min(2 * before.widened, _WIDEST), now_s
    if doubted_at_s is not None and now_s - doubted_at_s >= REMEMBER_S:
        return 1.0, None
    return before.widened, doubted_at_s


def _most_engines_fail(engines: Iterable[EngineTraffic]) -> bool:
    heard = [one for one in engines if one.window_calls >= _WINDOW_CALLS]
    failing = sum(one.window_failures >= _FAILING * one.window_calls and one.window_failures > 0 for one in heard)
    return failing > len(heard) / 2


def _derived(
    longest: LongestCall | None,
    tail: LatencyTail | None,
    promised_s: float | None,
    *,
    factor: float,
    least_s: float,
    most_s: float,
    widened: float,
    in_force_s: float | None,
    told: bool,
) -> _Derived:
    if promised_s is None:
        return _Derived(limit_s=None, how="no ceiling is in force, so nothing bounds the wait")
    if not told:
        return _Derived(limit_s=None, how="no proxy tells how long calls take")
    if longest is None:
        return _Derived(limit_s=None, how=f"fewer than {MIN_CALLS} healthy calls are too few to go by")
    limit_s = max(least_s, promised_s + factor * longest.time_s)
    measured = f"{promised_s:.3g} s wait + {factor:g} x {longest.time_s:.3g} s"
    how = f"the longer of {least_s:.3g} s as declared and {measured} as measured"
    # Held against the limit in force, too: what it ends is not measured, so a tail never quite reaches it.
    near_s = _NEAR * min(limit_s, in_force_s or limit_s)
    if tail is not None and tail.p99_s > near_s and _BEYOND_TAIL * tail.p99_s > limit_s:
        limit_s = _BEYOND_TAIL * tail.p99_s
        how = f"{_BEYOND_TAIL:g} x {tail.p99_s:.3g} s, as calls take longer than the allowed wait explains"
    if widened > 1:
        limit_s *= widened
        how += f", x {widened:g} since most engines failed calls under it"
    limit_s = _STEP_S * math.ceil(limit_s / _STEP_S)
    if most_s and limit_s >= most_s:
        return _Derived(limit_s=None, how="the total is shorter than what it would be")
    return _Derived(limit_s=limit_s, how=how)


def _steadied(
    old_s: float | None, derived: _Derived, since_s: float, now_s: float, admission: AdmissionDecision | None
) -> float | None:
    new_s = derived.limit_s
    # While no engine is in there is no wait to go by.
    rested = now_s - since_s >= DOWN_INTERVAL_S and admission is not None and admission.slots > 0
    if new_s is None or old_s is None:
        return new_s if new_s is None or rested else None
    if new_s > old_s * (1 + MOVE) or (rested and new_s < old_s * (1 - MOVE)):
        return new_s
    return old_s


def _in_force(limits: TimeLimits) -> tuple[float | None, ...]:
    return (
        limits.first_token_s,
        limits.between_tokens_s,
        limits.stream_total_s,
        limits.per_try_s,
        limits.total_s,
    )


def _sentence(name: str, limit_s: float | None, derived: _Derived, *, given: bool) -> str:
    if given:
        return f"{name} as given"
    if limit_s is not None:
        return f"{name} {limit_s:.4g} s: {derived.how}"
    return f"{name} off: {derived.how if derived.limit_s is None else 'being measured'}"


def _reported_s(engines: Sequence[Engine], now_s: float) -> float:
    """The longest of the engines' own 99th percentiles of the time to the first token; 0 where none tells."""
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
