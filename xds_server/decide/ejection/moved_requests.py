"""Engines that may hold a request which moved from a hung engine: watched, not judged.

A prompt whose chunks take longer than any before looks like a hang. Its requests are cut and retried, and the
next engine reads the same prompt. So after the requests of a hung engine were cut, another engine that stalls in
a prefill stays in rotation, for as long as a healthy request may take: one request ejects at most one engine.
Judged as ever: a stall in decodes, an unanswered canary of an idle engine, and a stall from before the cut.
"""

from collections.abc import Iterable, Sequence

from engine.report import PREFILL_READING, Verdict
from xds_server.decide.decision_memory import HungCut
from xds_server.decide.decisions import EngineDecision
from xds_server.model.fleet import Engine, EngineId


def hung_cuts(
    before: Sequence[HungCut], cut: Iterable[EngineId], *, longest_s: float, now_s: float
) -> tuple[HungCut, ...]:
    """The recent cuts of hung engines, oldest first; ``cut``: the engines whose cut begins now."""
    # A request may stall ``longest_s`` after it moved, and for as long.
    kept = [one for one in before if now_s < one.at_s + 2 * longest_s]
    return (*kept, *(HungCut(engine=key, at_s=now_s) for key in cut))


def explaining_cut(
    engine: Engine, decided: EngineDecision | None, cuts: Sequence[HungCut], longest_s: float
) -> tuple[HungCut, float] | None:
    """The cut whose requests may explain a stall of ``engine``, and until when (monotonic); None if none may."""
    report = engine.report
    if report is None or report.verdict is not Verdict.HUNG or engine.received_at_s is None:
        return None
    if not report.reasons or report.reasons[0].reading != PREFILL_READING or (decided is not None and decided.cut):
        return None
    stalled_at_s = engine.received_at_s - report.reasons[0].age_s
    for one in cuts:
        if one.engine != engine.id and one.at_s <= stalled_at_s < one.at_s + longest_s:
            return one, stalled_at_s + longest_s
    return None
