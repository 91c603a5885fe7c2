"""What the findings of a run come to: passed, failed, or not known; and what a pipeline is told.

The exit status is 0 when everything that is promised held, 1 when something did not, 3 when that is not known.
(2 is for those who asked wrongly.) A pipeline that only knows zero and other numbers takes what is not known as a
failure, which is what it should be: nothing was shown.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from chaos.checks import control_plane_checks as control_plane
from chaos.checks import ejection_checks as ejection
from chaos.checks import goodput_checks as goodput
from chaos.checks import gpu_time_checks as work
from chaos.checks import latency_checks as latency
from chaos.checks import stream_checks as streams
from chaos.checks import validity_checks as trust
from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.check_input import CheckInput, check_input
from chaos.history.recorded_history import History

Check = Callable[[CheckInput], CheckFinding | None]
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
    ejection.bad_engines_avoided,
    ejection.traffic_restored,
    ejection.no_stuck_ejection,
    ejection.engine_floor,
    streams.cut_streams,
    control_plane.configuration_converged,
    control_plane.nothing_lost_without_control_plane,
    trust.processes_alive,
)
"""In the order in which they are reported."""

TRUST: Final[tuple[Check, ...]] = (trust.blast_radius, trust.history_complete, trust.bench_validity)
"""Whether the experiment itself was what it should be."""


def check_findings(history: History) -> tuple[CheckFinding, ...]:
    """One finding for each promise that is made. A yes is only given by a history that tells everything."""
    case = check_input(history)
    promises = [found for check in PROMISES if (found := check(case)) is not None]
    return (
        *(_doubted(one, case) for one in promises),
        *(found for check in TRUST if (found := check(case)) is not None),
    )


def _doubted(finding: CheckFinding, case: CheckInput) -> CheckFinding:
    """The finding, its yes withdrawn where the history does not tell everything."""
    if finding.answer is not CheckResult.YES or not case.flaws:
        return finding
    why = f"as far as the history goes: {finding.why}; but {'; '.join(case.flaws)}"
    return replace(finding, answer=CheckResult.UNKNOWN, why=why)


EXIT_STATUS: Final[Mapping[CheckResult, int]] = MappingProxyType(
    {CheckResult.YES: 0, CheckResult.NO: 1, CheckResult.UNKNOWN: 3}
)

BENCH: Final = "bench"
WHATEVER_THE_MACHINE: Final = frozenset(
    {"amplification", "floorEnginesPercent", "configurationConverged", "processes"}
)
"""What must hold on a slow machine too: a no to one of these counts although the bench did not keep up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentVerdict:
    """The answer on one experiment, and the findings that make it."""

    history: History
    findings: tuple[CheckFinding, ...]
    answer: CheckResult

    @property
    def name(self) -> str:
        """Of the scenario."""
        return self.history.began.name

    @property
    def subject(self) -> str:
        """Who was judged."""
        return self.history.began.subject


def verdict(history: History) -> ExperimentVerdict:
    """The history, judged."""
    findings = check_findings(history)
    return ExperimentVerdict(history=history, findings=findings, answer=combined_result(findings))


def combined_result(findings: Sequence[CheckFinding]) -> CheckResult:
    """NO when a promise was broken, UNKNOWN when one is not known to be kept, or none was judged.

    Where the bench did not keep up, only what does not depend on it is a no.
    """
    keeps_up = all(one.answer is CheckResult.YES for one in findings if one.check == BENCH)
    broken = [one for one in findings if one.answer is CheckResult.NO]
    if any(keeps_up or one.check in WHATEVER_THE_MACHINE for one in broken):
        return CheckResult.NO
    if not findings or any(one.answer is not CheckResult.YES for one in findings):
        return CheckResult.UNKNOWN
    return CheckResult.YES


def overall_result(answers: Iterable[CheckResult]) -> CheckResult:
    """Of several experiments: NO before UNKNOWN before YES; of none, UNKNOWN."""
    known = set(answers)
    return (
        CheckResult.YES
        if known == {CheckResult.YES}
        else CheckResult.NO
        if CheckResult.NO in known
        else CheckResult.UNKNOWN
    )


def under_test(verdicts: Sequence[ExperimentVerdict], beside: Collection[str] = ()) -> CheckResult:
    """What all experiments come to, those of subjects that only stand beside for comparison left out.

    Where nobody is left (somebody was compared with himself), all of them count.
    """
    own = [one.answer for one in verdicts if one.subject not in beside]
    return overall_result(own or (one.answer for one in verdicts))
