"""Check for cut streams. Pure."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from chaos.checks import text_format
from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.check_input import CheckInput
from chaos.history.history_events import AttemptRecord, RequestRecord
from chaos.measures.possible_goodput import stopped_proxies
from chaos.measures.request_periods import is_cut_stream

_NOTICED_S: Final = 1.0
"""Longest time to notice a connection left behind by a dying engine."""


def cut_streams(case: CheckInput) -> CheckFinding | None:
    """Streams cut after they began, except those lost to a crash, a hang or a stopped proxy.

    A drain excuses none: a draining engine must finish its streams.
    """
    limit = case.hypothesis.cut_streams
    if limit is None:
        return None
    streams = [one for one in case.history.requests if one.streaming]
    calls: dict[str, list[AttemptRecord]] = defaultdict(list)
    for attempt in case.history.attempts:
        calls[attempt.request_id].append(attempt)
    cut = [one for one in streams if is_cut_stream(one)]
    ours = [one for one in cut if not taken_by_fault(case, one, calls[one.request_id])]
    said_limit = f"<= {limit}"
    if not case.history.requests:
        why = "no request was sent"
        return CheckFinding(check="cutStreams", answer=CheckResult.UNKNOWN, why=why, limit=said_limit)
    kept = len(ours) <= limit
    why = f"{len(ours)} of {text_format.count(len(streams), 'stream')} cut after they began"
    if len(cut) > len(ours):
        why += f"; not counted: {len(cut) - len(ours)} lost to the fault itself"
    if ours:
        first = min(ours, key=lambda one: one.at_s + one.latency_s)
        served = calls[first.request_id]
        by = f" on {served[-1].engine}" if served else ""
        why += (
            f"; first: {first.request_id}{by}, cut after {text_format.count(first.tokens, 'token')} at "
            f"{text_format.moment(first.ended_at_s)} ({first.reason.value})"
        )
    if not kept and not case.has_engine_logs:
        why += "; without engine logs it is unknown which of them the fault cut"
    return CheckFinding(
        check="cutStreams",
        answer=CheckResult.YES if kept else CheckResult.NO if case.has_engine_logs else CheckResult.UNKNOWN,
        why=why,
        measured=str(len(ours)),
        limit=said_limit,
        at_s=None if kept else min(one.ended_at_s for one in ours),
        numbers={"cut": len(ours), "taken": len(cut) - len(ours), "streams": len(streams)},
    )


def taken_by_fault(case: CheckInput, request: RequestRecord, calls: Sequence[AttemptRecord]) -> bool:
    """Whether the fault itself cut the stream: its engine broke or its proxy stopped while it ran."""
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
        for trouble in case.impairments_of_all_pools
    )
