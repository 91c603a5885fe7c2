"""Every promise of a scenario, and those that are always made, judged on one history."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from chaos.checks import control_plane, ejection, goodput, latency, streams, trust, work
from chaos.checks.case import Case, case_of
from chaos.checks.finding import Answer, Finding
from chaos.history.history import History

Check = Callable[[Case], Finding | None]
"""None: nothing is promised, or there is nobody to keep it."""

PROMISES: Final[tuple[Check, ...]] = (
    trust.ran_to_the_end,
    goodput.steady_before,
    goodput.goodput,
    goodput.goodput_of_possible,
    latency.answer_p99,
    latency.first_token_p99,
    latency.token_gap_p99,
    latency.refused_within,
    work.amplification,
    work.wasted_percent,
    work.wasted_gpu_seconds,
    work.idle_while_shedding,
    ejection.left_alone_within,
    ejection.back_within,
    ejection.no_stuck_ejection,
    ejection.floor,
    streams.cut_streams,
    control_plane.configuration_converged,
    control_plane.nothing_lost_without_control_plane,
    trust.processes,
)
"""In the order in which they are reported."""

TRUST: Final[tuple[Check, ...]] = (trust.blast_radius, trust.history_complete, trust.bench)
"""Whether the experiment itself was what it should be."""


def judged(history: History) -> tuple[Finding, ...]:
    """One finding for each promise that is made. A yes is only given by a history that tells everything."""
    case = case_of(history)
    promises = [found for check in PROMISES if (found := check(case)) is not None]
    return (
        *(_doubted(one, case) for one in promises),
        *(found for check in TRUST if (found := check(case)) is not None),
    )


def _doubted(finding: Finding, case: Case) -> Finding:
    """The finding, its yes withdrawn where the history does not tell everything."""
    if finding.answer is not Answer.YES or not case.flaws:
        return finding
    why = f"as far as the history goes: {finding.why}; but {'; '.join(case.flaws)}"
    return replace(finding, answer=Answer.UNKNOWN, why=why)
