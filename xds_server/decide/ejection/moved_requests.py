"""Engines that may hold a request which moved from a hung engine: watched, not judged.

A prompt whose step outlasts the stall limit makes a working engine look hung. Once that engine is ejected, its
requests are cut and retried, and the prompt meets the next engine: one request could eject the whole pool. So the
first engine is ejected, and later ones of the same symptom are watched and stay in rotation. What a retry cannot
explain still ejects at once: a standstill of decodes, one that began with the first, or one much later. A watch
ends after the longest step that the judgement believes in.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from engine.report import PREFILL_READING
from xds_server.decide.decision_memory import PromptWatch
from xds_server.model.fleet import Engine, EngineId

RETRY_WINDOW_S: Final = 30.0
"""Time after a standstill within which one elsewhere may be its request, retried."""

LONGEST_WATCH_S: Final = 30.0
"""Standstill from which a watched engine is hung: no step of an engine is believed to take longer."""

NO_WATCH: Final = PromptWatch()


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedEngine:
    """An engine kept in rotation until ``until_s``: it may hold a request that moved from ``origin``."""

    origin: EngineId
    until_s: float


def prefill_stalled_since_s(engine: Engine) -> float | None:
    """Monotonic time since which the engine stands still in a prefill by its report; None if it does not."""
    report = engine.report
    if report is None or engine.received_at_s is None or not report.reasons:
        return None
    deciding = report.reasons[0]
    return engine.received_at_s - deciding.age_s if deciding.reading == PREFILL_READING else None


def watched_engines(
    before: PromptWatch, stalls: Mapping[EngineId, float], *, together_s: float, now_s: float
) -> tuple[PromptWatch, dict[EngineId, WatchedEngine]]:
    """The watch after this round, and the engines to keep in rotation.

    ``stalls`` are the engines whose reports say that they stand still in a prefill, with the time it began
    (monotonic). Standstills that began within ``together_s`` are independent: a retry comes later.
    """
    began_s = {key: min(at_s, before.began_s.get(key, at_s)) for key, at_s in stalls.items()}
    watch = replace(before, began_s=began_s, judged=before.judged & began_s.keys())
    if not stalls and now_s - watch.last_s > RETRY_WINDOW_S + LONGEST_WATCH_S:
        return NO_WATCH, {}
    watched: dict[EngineId, WatchedEngine] = {}
    for key, at_s in sorted(began_s.items(), key=lambda one: (one[1], one[0])):
        if key in watch.judged:
            continue
        until_s, origin = at_s + LONGEST_WATCH_S, watch.origin
        if origin is None or at_s - watch.last_s > RETRY_WINDOW_S:
            watch = replace(watch, origin=key, origin_began_s=at_s, last_s=at_s, judged=watch.judged | {key})
            continue
        watch = replace(watch, last_s=max(watch.last_s, at_s))
        if key == origin or at_s - watch.origin_began_s < together_s or now_s >= until_s:
            watch = replace(watch, judged=watch.judged | {key})
        else:
            watched[key] = WatchedEngine(origin=origin, until_s=until_s)
    return watch, watched
