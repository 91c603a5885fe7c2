"""Probe intervals: short while the verdict may change, long otherwise, and limited by their cost.

A metrics page costs the engine's API process milliseconds in its serving thread. So intervals depend on the
duration of the last probe. For an idle engine the count of requests (a few hundred bytes), which rises first, is
polled in between.
"""

from typing import Final

from engine.agent.agent_config import AgentConfig
from engine.agent.agent_engine_state import EngineHealthState

COUNT_INTERVAL_S: Final = 0.25
"""Detection time of a request to an engine that hung while idle; a count takes well below 1 ms."""

# A healthy idle engine is tested by canaries; its metrics page costs most and adds nothing.
_CALM_LOOK_S: Final = 3.0
# While draining, a caller waits for the last request.
_DRAIN_INTERVAL_S: Final = 0.1
# Probes take at most 5 % of the engine's time, unless the agent would miss changes; deciding ones are not late.
_LOOK_SHARE: Final = 0.05
_LONGEST_SPACE_S: Final = 1.0
# Minimum rate for an idle engine without a count: only metrics show new requests.
_UNCOUNTED_IDLE_S: Final = 0.5


def pause_s(now: EngineHealthState, config: AgentConfig, at_s: float, *, look_s: float, counts: bool) -> float:
    """Seconds from ``at_s`` until the next probe or canary; the last probe took ``look_s``.

    ``counts``: the engine's count of requests is reliable.
    """
    pause = now.judgement.pause_s(at_s, config.probe)
    if is_idle(now) and not now.judgement.books.recovering:
        pause = max(pause, config.idle_interval_s if counts else min(config.idle_interval_s, _UNCOUNTED_IDLE_S))
    elif now.order is not None:
        pause = min(pause, _DRAIN_INTERVAL_S)
    pause = max(pause, min(look_s / _LOOK_SHARE, _LONGEST_SPACE_S, config.probe.decode_stall_s / 2))
    deciding_s = now.judgement.deciding_pause_s(at_s, config.probe)
    return pause if deciding_s is None else min(pause, deciding_s)


def is_idle(now: EngineHealthState) -> bool:
    """Whether the engine is idle and healthy."""
    return now.produces and now.in_flight == 0 and now.order is None and now.judgement.books.answer is None


def metrics_due(now: EngineHealthState, at_s: float, *, counts: bool) -> bool:
    """Whether a periodic metrics reading is due."""
    looked_at_s = now.judgement.books.looked_at_s
    return not counts or not is_idle(now) or looked_at_s is None or at_s - looked_at_s >= _CALM_LOOK_S


def canary_due(now: EngineHealthState, config: AgentConfig, at_s: float, asked_at_s: float | None) -> bool:
    """Whether to send a canary: never behind progressing requests, nor to a healthy draining engine."""
    if not now.judgement.wants_canary:
        return False
    books = now.judgement.books
    if now.order is not None and books.stalled_since_s is None and not books.suspects_rank and now.produces:
        return False
    moving = now.produces and books.progressed
    if not moving or asked_at_s is None or books.recovering or books.suspects_rank:
        return True
    return at_s - asked_at_s >= config.idle_interval_s
