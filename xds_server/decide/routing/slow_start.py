"""Slow start: an engine that joins or returns gets a growing part of its share, by our own weights.

Envoy's ``slow_start_config`` covers new hosts and hosts that its own health checks return, within one locality.
Here engines return by health in EDS, and may be alone in their zone. See ``docs/adr/0025-slow-start.md``.

**Ramp.** The part is that of Envoy: time since the return over the window, at least ``minWeightPercent``. It moves
in ``STEPS`` steps on a common grid of time, so that engines that ramp together cost one push per step. An engine
that answered ``PROVEN_CALLS`` calls in its ramp and failed none is proven: its time counts double. One that fails
at the breaker's rate, from two failures on, starts again.

**Hold.** With ``affinity.returnAfter`` an engine that was out of rotation first has ``HELD_PERCENT`` of its share,
until it has been healthy for that time; then its ramp begins. See ``key_hold`` and ADR 0049.

Parts are relative: they choose among engines in rotation and never lower an admission limit. A pool that returns
as a whole serves at once.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from policies.resilience import ResilienceSpec, SlowStart
from xds_server.decide.decision_memory import NO_SLOW_START, RampMemory, SlowStartMemory
from xds_server.decide.decisions import EngineDecision, Health, ShareRamp
from xds_server.decide.routing.key_hold import NO_HOLD, KeyHold, is_on_trial
from xds_server.model.fleet import EngineId
from xds_server.model.memo import reuse_equal
from xds_server.model.pool_traffic import EngineTraffic, PoolTraffic

STEPS: Final = 20
"""Steps per window: each rebuilds Envoy's balancer, and 5 % of a share is as exact as its picks."""

MIN_STEP_S: Final = 0.5
"""Minimum time per step: zone weights do not move more often, either."""

PROVEN_CALLS: Final = 10
"""Successful calls without a failure that show that an engine works."""

HELD_PERCENT: Final = 5.0
"""Part of its share while keys are held back: enough requests to notice that it fails, and 1 of 20 keys moves."""

_PROVEN_RATE: Final = 2.0
"""Seconds of ramp per second of a proven engine."""

_FAILURES: Final = 2
"""Minimum failures that restart a ramp, as in the breaker's trial: one may be the request's own fault."""

_FAILED_PERCENT: Final = 50.0
"""Share of failed calls that restarts a ramp where the breaker has no error rate."""

_EARLY: Final = 1e-6
"""Part of a step by which a round may be early: without it, rounding could leave a step without a next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RampInputs:
    """One round: the window, the failed percentage that restarts a ramp, held keys, and the grid of steps."""

    window_s: float
    failed_percent: float
    hold: KeyHold
    now_s: float

    @property
    def step_s(self) -> float:
        return max(MIN_STEP_S, self.window_s / STEPS)

    @property
    def tick_s(self) -> float:
        """When the present step began."""
        return self._step * self.step_s

    @property
    def next_tick_s(self) -> float:
        return (self._step + 1) * self.step_s

    @property
    def _step(self) -> int:
        return math.floor(self.now_s / self.step_s + _EARLY)


def slow_start(
    resilience: ResilienceSpec,
    decisions: Mapping[EngineId, EngineDecision],
    traffic: PoolTraffic | None,
    *,
    known: Mapping[EngineId, EngineDecision],
    before: SlowStartMemory,
    now_s: float,
    hold: KeyHold = NO_HOLD,
) -> SlowStartMemory:
    """The ramps after this round; ``before`` itself without news.

    ``known`` are the decisions of the last round, empty before the first: then only engines that the last run
    knew as absent or ramping ramp.
    """
    window_s = _window_s(resilience.slow_start)
    if not (window_s or hold.after_s) or resilience.shadowed(None):
        return NO_SLOW_START
    inputs = _RampInputs(
        window_s=window_s,
        failed_percent=resilience.breaker.error_rate_percent or _FAILED_PERCENT,
        hold=hold,
        now_s=now_s,
    )
    calls = traffic.engines if traffic is not None else {}
    absent = frozenset(key for key, one in decisions.items() if one.health is not Health.HEALTHY)
    ramps = {}
    for key, decision in decisions.items():
        if key in absent:
            continue
        ramp = before.ramps.get(key)
        if ramp is None and (key in before.absent or (known and key not in known)):
            ramp = _new_ramp(calls.get(key.engine), now_s, hold.after_s if key in before.absent else 0.0)
        if ramp is None:
            continue
        ramp = _next_ramp(ramp, calls.get(key.engine), inputs)
        ramp = _held(ramp, inputs, on_trial=is_on_trial(decision), released=key in hold.released)
        if ramp.held_s or ramp.ramped_s < window_s:
            ramps[key] = ramp
    return reuse_equal(before, SlowStartMemory(ramps=ramps, absent=absent))


def share_ramps(memory: SlowStartMemory, policy: SlowStart) -> dict[EngineId, ShareRamp]:
    """The part of its share that each ramping engine gets."""
    window_s = _window_s(policy)
    return {key: _share_ramp(one, policy, window_s) for key, one in memory.ramps.items()}


def _share_ramp(ramp: RampMemory, policy: SlowStart, window_s: float) -> ShareRamp:
    full_at_s = ramp.at_s + ramp.held_s + (window_s - ramp.ramped_s) / _rate(ramp)
    if ramp.held_s:
        percent = min(HELD_PERCENT, policy.min_weight_percent)
        return ShareRamp(percent=percent, full_at_s=full_at_s, held_until_s=ramp.at_s + ramp.held_s)
    percent = round(max(policy.min_weight_percent, 100 * ramp.ramped_s / window_s), 1)
    return ShareRamp(percent=percent, full_at_s=full_at_s)


def slow_start_due_s(memory: SlowStartMemory, policy: SlowStart, now_s: float) -> float:
    """When the next step is due; infinite while no engine ramps."""
    if not memory.ramps:
        return math.inf
    inputs = _RampInputs(window_s=_window_s(policy), failed_percent=_FAILED_PERCENT, hold=NO_HOLD, now_s=now_s)
    return inputs.next_tick_s


def _window_s(policy: SlowStart) -> float:
    """Seconds of a ramp; 0 without ramps."""
    return policy.window if policy.min_weight_percent < 100 else 0.0


def _new_ramp(calls: EngineTraffic | None, now_s: float, held_s: float) -> RampMemory:
    succeeded, failed = _totals(calls)
    return RampMemory(at_s=now_s, succeeded=succeeded, failed=failed, held_s=held_s)


def _held(ramp: RampMemory, inputs: _RampInputs, *, on_trial: bool, released: bool) -> RampMemory:
    """The ramp with the hold that this round allows."""
    if not ramp.held_s:
        return ramp
    if released or not inputs.hold.after_s:
        return replace(ramp, held_s=0.0)
    # An engine on trial is not healthy yet. An edit may have shortened the time.
    if on_trial:
        return replace(ramp, held_s=inputs.hold.after_s, at_s=inputs.now_s)
    return replace(ramp, held_s=min(ramp.held_s, inputs.hold.after_s))


def _next_ramp(ramp: RampMemory, calls: EngineTraffic | None, inputs: _RampInputs) -> RampMemory:
    succeeded, failed = _totals(calls)
    if calls is not None and (succeeded < ramp.succeeded or failed < ramp.failed):
        ramp = replace(ramp, succeeded=0, failed=0)  # the counters were reset
    good, bad = (0, 0) if calls is None else (succeeded - ramp.succeeded, failed - ramp.failed)
    if bad >= _FAILURES and 100 * bad >= inputs.failed_percent * (good + bad):
        return _new_ramp(calls, inputs.now_s, inputs.hold.after_s if ramp.held_s else 0.0)
    if inputs.tick_s <= ramp.at_s:
        return ramp
    passed_s = inputs.tick_s - ramp.at_s
    held_s = max(0.0, ramp.held_s - passed_s)
    return replace(
        ramp,
        ramped_s=ramp.ramped_s + (passed_s - (ramp.held_s - held_s)) * _rate(ramp),
        held_s=held_s,
        at_s=inputs.tick_s,
        proven=not bad and (ramp.proven or good >= PROVEN_CALLS),
    )


def _rate(ramp: RampMemory) -> float:
    return _PROVEN_RATE if ramp.proven else 1.0


def _totals(calls: EngineTraffic | None) -> tuple[int, int]:
    return (0, 0) if calls is None else (calls.succeeded, calls.failed)
