"""Engines of a pool that stand still together.

A long prompt looks like a hang: within a step nothing moves. So a prefill gets 3 s, even after short prompts: a
long one may be the first. But several engines do not get the first long prompts of a minute in the same second. If
they began to stand still together, they count as hung as soon as decodes would. Retries can move several long
prompts at once, so standstills soon after such an event are not judged together.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from engine.report import PREFILL_READING, STANDSTILL_READING
from xds_server.decide.decision_memory import JointStandstill
from xds_server.decide.ejection.moved_requests import RETRY_WINDOW_S
from xds_server.model.fleet import Engine, EngineId

LEAST_ENGINES: Final = 3
LEAST_SHARE: Final = 0.25
TOGETHER_S: Final = 1.0
"""Standstills that begin within this time are one event: a hang is seen up to two probes late."""

NO_STANDSTILL: Final = JointStandstill()
_READINGS: Final = frozenset({STANDSTILL_READING, PREFILL_READING, "tokens"})


def standstill_since_s(engine: Engine) -> float | None:
    """Monotonic time since which the engine stands still with work, by its report; None if it does not."""
    report = engine.report
    if report is None or engine.received_at_s is None or not report.requests_in_flight:
        return None
    age_s = max((one.age_s for one in report.reasons if one.reading in _READINGS), default=0.0)
    return engine.received_at_s - age_s if age_s else None


def joint_standstills(
    before: JointStandstill, since_s: Mapping[EngineId, float], engines: int, *, moved_s: float | None
) -> JointStandstill:
    """The standstills after this round, and those of a pool of ``engines`` that are one event.

    ``since_s``: engines that stand still, and since when (monotonic). ``moved_s``: when a standstill began whose
    requests were retried elsewhere.
    """
    if not since_s:
        return before if before == NO_STANDSTILL or not before.since_s else JointStandstill(began_s=before.began_s)
    earlier_s = [at_s for at_s in (before.began_s, moved_s) if at_s is not None]
    ordered = sorted((at_s, key) for key, at_s in since_s.items())
    largest, end = slice(0, 0), 0
    for first, (begin_s, _) in enumerate(ordered):
        while end < len(ordered) and ordered[end][0] - begin_s <= TOGETHER_S:
            end += 1
        if end - first > largest.stop - largest.start and not _may_be_moved(begin_s, earlier_s):
            largest = slice(first, end)
    group = ordered[largest]
    if len(group) < max(LEAST_ENGINES, LEAST_SHARE * engines):
        return JointStandstill(since_s=since_s, began_s=before.began_s)
    return JointStandstill(since_s=since_s, together=frozenset(key for _, key in group), began_s=group[0][0])


def _may_be_moved(begin_s: float, earlier_s: Sequence[float]) -> bool:
    """Whether requests that an earlier event moved may explain standstills that began at ``begin_s``."""
    return any(TOGETHER_S < begin_s - at_s <= RETRY_WINDOW_S for at_s in earlier_s)
