"""Streams that began and did not end. Pure."""

from collections import defaultdict
from typing import Final

from chaos.checks import words
from chaos.checks.case import Case
from chaos.checks.finding import Answer, Finding
from chaos.history.events import Attempt, Request
from chaos.measures.periods import is_cut
from chaos.measures.possible import stopped_proxies

_NOTICED_S: Final = 1.0
"""A connection that a dying engine leaves behind is noticed so late."""


def cut_streams(case: Case) -> Finding | None:
    """Streams that began and did not end, but for those that a crash, a hang or a stopped proxy took.

    A drain takes none: an engine that is drained lets its streams end.
    """
    limit = case.hypothesis.cut_streams
    if limit is None:
        return None
    streams = [one for one in case.history.requests if one.streaming]
    calls: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in case.history.attempts:
        calls[attempt.request_id].append(attempt)
    cut = [one for one in streams if is_cut(one)]
    ours = [one for one in cut if not _taken(case, one, calls[one.request_id])]
    said_limit = f"<= {limit}"
    if not case.history.requests:
        why = "no request was sent"
        return Finding(check="cutStreams", answer=Answer.UNKNOWN, why=why, limit=said_limit)
    kept = len(ours) <= limit
    why = f"{len(ours)} of {words.count(len(streams), 'stream')} began and did not end"
    if len(cut) > len(ours):
        why += f"; {len(cut) - len(ours)} more that the fault itself took are not counted"
    if ours:
        first = min(ours, key=lambda one: one.at_s + one.latency_s)
        served = calls[first.request_id]
        by = f" on {served[-1].engine}" if served else ""
        why += (
            f"; the first {first.request_id}{by}, ended after {words.count(first.tokens, 'token')} at "
            f"{words.moment(first.ended_at_s)} ({first.reason.value})"
        )
    if not kept and not case.booked:
        why += "; without the engines' books nobody knows which of them the fault took"
    return Finding(
        check="cutStreams",
        answer=Answer.YES if kept else Answer.NO if case.booked else Answer.UNKNOWN,
        why=why,
        measured=str(len(ours)),
        limit=said_limit,
        at_s=None if kept else min(one.ended_at_s for one in ours),
        numbers={"cut": len(ours), "taken": len(cut) - len(ours), "streams": len(streams)},
    )


def _taken(case: Case, request: Request, calls: list[Attempt]) -> bool:
    """Whether a fault took the stream itself: its engine broke, or its proxy stopped, while it ran."""
    if any(
        request.proxy == proxy and start_s < request.ended_at_s and request.at_s < end_s
        for proxy, start_s, end_s in stopped_proxies(case.history)
    ):
        return True
    return any(
        trouble.engine == call.engine
        and trouble.nature.takes_streams
        and trouble.start_s <= max(call.closed_at_s, request.ended_at_s) + _NOTICED_S
        and call.at_s < trouble.end_s
        for call in calls[-1:]
        for trouble in case.troubles
    )
