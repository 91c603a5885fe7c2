"""Verdict of a run (passed, failed or unknown) and its exit status.

Exit status 0: all limits held; 1: at least one did not; 2: usage error; 3: unknown. Pipelines that only test for
zero treat unknown as a failure, as they should: nothing was proven.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from chaos.checks import affinity_checks as affinity
from chaos.checks import caller_checks as callers
from chaos.checks import control_plane_checks as control_plane
from chaos.checks import ejection_checks as ejection
from chaos.checks import goodput_checks as goodput
from chaos.checks import gpu_time_checks as work
from chaos.checks import latency_checks as latency
from chaos.checks import objective_checks as promised
from chaos.checks import stage_checks as stages
from chaos.checks import stream_checks as streams
from chaos.checks import validity_checks as trust
from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.check_input import CheckInput, check_input
from chaos.history.recorded_history import History

Check = Callable[[CheckInput], CheckFinding | None]
"""None: the scenario sets no limit, or the check does not apply."""

PROMISES: Final[tuple[Check, ...]] = (
    trust.ran_to_the_end,
    goodput.steady_before,
    goodput.goodput,
    goodput.goodput_of_possible,
    callers.caller_goodput,
    callers.caller_p99_times,
    callers.caller_first_token_times,
    callers.quota_error,
    callers.hopeless_refused,
    stages.prefilled_remotely,
    affinity.prefix_hit,
    affinity.largest_share_times,
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
"""In report order; objectives of the policies follow."""

TRUST: Final[tuple[Check, ...]] = (trust.blast_radius, trust.history_complete, trust.bench_validity)
"""Checks of the experiment itself."""


def check_findings(history: History) -> tuple[CheckFinding, ...]:
    """One finding per limit or objective. Only a complete history yields a yes."""
    case = check_input(history)
    promises = [found for check in PROMISES if (found := check(case)) is not None]
    promises += promised.objectives(case)
    return (
        *(_doubted(one, case) for one in promises),
        *(found for check in TRUST if (found := check(case)) is not None),
    )


def _doubted(finding: CheckFinding, case: CheckInput) -> CheckFinding:
    """The finding, with yes turned into unknown if the history is incomplete."""
    if finding.answer is not CheckResult.YES or not case.flaws:
        return finding
    why = f"incomplete history ({'; '.join(case.flaws)}); so far: {finding.why}"
    return replace(finding, answer=CheckResult.UNKNOWN, why=why)


EXIT_STATUS: Final[Mapping[CheckResult, int]] = MappingProxyType(
    {CheckResult.YES: 0, CheckResult.NO: 1, CheckResult.UNKNOWN: 3}
)

BENCH: Final = "bench"
WHATEVER_THE_MACHINE: Final = frozenset(
    {"amplification", "floorEnginesPercent", "configurationConverged", "processes"}
)
"""Checks that do not depend on machine speed: a no counts even if the bench did not keep up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentVerdict:
    """Verdict on one experiment, with its findings.

    ``not_judged`` are objectives of the policies that none of its requests could keep.
    """

    history: History
    findings: tuple[CheckFinding, ...]
    answer: CheckResult
    not_judged: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the scenario."""
        return self.history.began.name

    @property
    def subject(self) -> str:
        """The subject under test."""
        return self.history.began.subject


def verdict(history: History) -> ExperimentVerdict:
    """Judge a history."""
    findings = check_findings(history)
    return ExperimentVerdict(
        history=history,
        findings=findings,
        answer=combined_result(findings),
        not_judged=promised.objectives_not_judged(check_input(history)),
    )


def combined_result(findings: Sequence[CheckFinding]) -> CheckResult:
    """NO if a limit was broken; UNKNOWN if one is unknown or none was checked.

    If the bench did not keep up, only checks independent of machine speed can be a no.
    """
    keeps_up = all(one.answer is CheckResult.YES for one in findings if one.check == BENCH)
    broken = [one for one in findings if one.answer is CheckResult.NO]
    if any(keeps_up or one.check in WHATEVER_THE_MACHINE for one in broken):
        return CheckResult.NO
    if not findings or any(one.answer is not CheckResult.YES for one in findings):
        return CheckResult.UNKNOWN
    return CheckResult.YES


def overall_result(answers: Iterable[CheckResult]) -> CheckResult:
    """Combine several experiments: NO before UNKNOWN before YES; UNKNOWN if there are none."""
    known = set(answers)
    return (
        CheckResult.YES
        if known == {CheckResult.YES}
        else CheckResult.NO
        if CheckResult.NO in known
        else CheckResult.UNKNOWN
    )


def under_test(verdicts: Sequence[ExperimentVerdict], beside: Collection[str] = ()) -> CheckResult:
    """Combined result of all experiments, without those of comparison subjects.

    If no other subject is left (a subject compared with itself), all of them count.
    """
    own = [one.answer for one in verdicts if one.subject not in beside]
    return overall_result(own or (one.answer for one in verdicts))
