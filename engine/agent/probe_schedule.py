"""When to look next: soon when something may change, seldom when nothing does, and never so often that it burdens.

A page of metrics costs the engine's API process milliseconds, in the thread that also serves requests. So looks
are spaced by what the last one took, and an idle engine's count of requests (a few hundred bytes) is watched in
between instead: it rises before anything else does.
"""

from typing import Final

from engine.agent.agent_config import AgentConfig
from engine.agent.agent_engine_state import EngineHealthState

COUNT_INTERVAL_S: Final = 0.25
"""A request to an engine that hung while idle is noticed within this; a count takes well below a millisecond."""

# A calm engine proves itself by its tokens; its page of metrics has nothing new to say, and costs the most.
_CALM_LOOK_S: Final = 3.0
# Draining, somebody waits for the last request to end.
_DRAIN_INTERVAL_S: Final = 0.1
# At most a twentieth of the engine's time goes into answering looks, as long as that does not blind the agent.
_LOOK_SHARE: Final = 0.05
_LONGEST_SPACE_S: Final = 1.0
# An idle engine that cannot count is looked at this often at least, for only looks show that work has come.
_UNCOUNTED_IDLE_S: Final = 0.5


def pause_s(now: EngineHealthState, config: AgentConfig, at_s: float, *, look_s: float, counts: bool) -> float:
    """Seconds from ``at_s`` until the next look or token is due, where the last look took ``look_s``.

    ``counts`` says whether the engine's own count of requests can be trusted to show that work has come.
    """
    pause = now.judgement.pause_s(at_s, config.probe)
    if is_idle(now) and not now.judgement.books.recovering:
        pause = max(pause, config.idle_interval_s if counts else min(config.idle_interval_s, _UNCOUNTED_IDLE_S))
    elif now.order is not None:
        pause = min(pause, _DRAIN_INTERVAL_S)
    return max(pause, min(look_s / _LOOK_SHARE, _LONGEST_SPACE_S, config.stall_after_s / 2))


def is_idle(now: EngineHealthState) -> bool:
    """Whether the engine is idle and well, so that nothing is to be expected but work."""
    return now.produces and now.in_flight == 0 and now.order is None and now.judgement.books.answer is None


def metrics_due(now: EngineHealthState, at_s: float, *, counts: bool) -> bool:
    """Whether the counters are worth reading, when nothing in particular has happened."""
    looked_at_s = now.judgement.books.looked_at_s
    return not counts or not is_idle(now) or looked_at_s is None or at_s - looked_at_s >= _CALM_LOOK_S


def canary_due(now: EngineHealthState, config: AgentConfig, at_s: float, asked_at_s: float | None) -> bool:
    """Whether to ask for one token now: never behind work that moves, nor for a draining engine that is well."""
    if not now.judgement.wants_canary:
        return False
    if now.order is not None and now.judgement.books.stalled_since_s is None and now.produces:
        return False
    moving = now.produces and now.judgement.books.progressed
    if not moving or asked_at_s is None or now.judgement.books.recovering:
        return True
    return at_s - asked_at_s >= config.idle_interval_s
