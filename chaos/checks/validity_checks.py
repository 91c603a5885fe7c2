"""Validity checks of the experiment: the bench, the blast radius and unexpected exits. Pure."""

from typing import Final

from chaos.checks import text_format
from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.check_input import CheckInput
from chaos.faults.target_kind import TargetKind
from chaos.history.history_events import ProcessExit
from chaos.measures.bench_validity import FAIR
from chaos.measures.bench_validity import bench_quality as bench_of
from chaos.measures.impairments import outages_of_target_kind
from chaos.scenario.placement import other_engines
from chaos.scenario.scenario_model import BlastRadius

_OURS: Final = ("control-plane", "agent-", "proxy-")
"""Name prefixes of the processes under test; all others belong to the lab."""

_HANDOVER_S: Final = 1.0
"""With inTurn, healing one target may overlap the next by this long."""


def history_complete(case: CheckInput) -> CheckFinding:
    """Whether the history is complete; otherwise every other yes becomes unknown."""
    return CheckFinding(
        check="historyComplete",
        answer=CheckResult.UNKNOWN if case.flaws else CheckResult.YES,
        why="; ".join(case.flaws) or "complete, and every line readable",
        measured=text_format.count(len(case.flaws), "gap"),
        limit="none",
    )


def bench_validity(case: CheckInput) -> CheckFinding:
    """Whether the machine kept up; otherwise measurements that depend on its speed do not count."""
    found = bench_of(
        case.history, FAIR, fault_s=case.phases.fault_s, engines_until_s=case.phases.fault_s or case.end_s
    )
    return CheckFinding(
        check="bench",
        answer=CheckResult.UNKNOWN if found.problems else CheckResult.YES,
        why="; ".join(found.problems)
        or f"requests were sent at most {text_format.seconds(found.lag_max_s)} late (p99 "
        f"{text_format.seconds(found.lag_p99_s)}){_others(case)}",
        measured=f"{text_format.seconds(found.lag_p99_s)} late (p99)",
        limit=f"<= {text_format.seconds(FAIR.lag_p99_s)}",
        numbers={
            "lag_p99_s": found.lag_p99_s,
            "lag_max_s": found.lag_max_s,
            "engine_delay_p99_s": found.engine_delay_p99_s,
            "path_p99_s": found.path_p99_s,
        },
    )


def _others(case: CheckInput) -> str:
    used = case.history.used
    return "" if used is None else f"; other programs used {max(0.0, used.machine - used.ours):.0f} % of the CPU"


def processes_alive(case: CheckInput) -> CheckFinding:
    """No control plane, proxy or agent exited unless a fault killed it.

    An unexpected exit of another lab process makes the experiment invalid (unknown).
    """
    blamed = [one for one in case.history.gone if one.process.startswith(_OURS)]
    others = [one for one in case.history.gone if one not in blamed]
    told = [
        f"{one.process} exited unexpectedly at {text_format.moment(one.at_s)} ({_status(one)})"
        for one in (*blamed, *others)
    ]
    return CheckFinding(
        check="processes",
        answer=CheckResult.NO if blamed else CheckResult.UNKNOWN if others else CheckResult.YES,
        why="; ".join(told) or "no process exited unexpectedly",
        measured=text_format.count(len(case.history.gone), "process", "processes") + " exited",
        limit="none",
        at_s=min((one.at_s for one in case.history.gone), default=None),
        numbers={"gone": len(case.history.gone)},
    )


def ran_to_the_end(case: CheckInput) -> CheckFinding | None:
    """Whether the abort condition was never met; absent without a condition, unless the run was stopped."""
    aborted = case.history.aborted
    condition = 0.0 if case.spec is None else case.spec.abort.goodput_below_percent
    if aborted is None:
        if not condition:
            return None
        return CheckFinding(
            check="ranToTheEnd",
            answer=CheckResult.YES,
            why=f"goodput did not stay below {text_format.percent(condition)}",
            limit=f"abort below {text_format.percent(condition)}",
        )
    return CheckFinding(
        check="ranToTheEnd",
        answer=CheckResult.NO if condition else CheckResult.UNKNOWN,
        why=f"stopped at {text_format.moment(aborted.at_s)}: {aborted.why}",
        measured=text_format.moment(aborted.at_s),
        limit=text_format.moment(case.history.began.seconds),
        at_s=aborted.at_s,
    )


def blast_radius(case: CheckInput) -> CheckFinding:
    """Whether the faults stayed within the scenario's blast radius."""
    radius = BlastRadius() if case.spec is None else case.spec.blast_radius
    others = () if case.spec is None else other_engines(case.spec)
    engines = {*case.history.slots, *(one.name for one in others)}
    proxies = {one.name for one in case.history.began.proxies}
    problems = []
    shares = {}
    for what, members, allowed in (
        ("engines", engines, radius.engines_percent),
        ("proxies", proxies, radius.proxies_percent),
    ):
        most, at_s = _most_at_once(case, members)
        shares[what] = 100.0 * most / len(members) if members else 0.0
        if shares[what] > allowed + 1e-9:
            problems.append(
                f"at {text_format.moment(at_s)} {most} of {len(members)} {what} were hit at once: "
                f"{text_format.percent(shares[what])} (limit {text_format.percent(allowed)})"
            )
    hits = outages_of_target_kind(case.history, TargetKind.CONTROL_PLANE)
    if hits and not radius.control_plane:
        problems.append(
            f"the control plane was hit at {text_format.moment(hits[0].start_s)}; blastRadius forbids it"
        )
    return CheckFinding(
        check="blastRadius",
        answer=CheckResult.NO if problems else CheckResult.YES,
        why="; ".join(problems)
        or f"at most {text_format.percent(shares['engines'])} of engines and "
        f"{text_format.percent(shares['proxies'])} of proxies were hit at once",
        measured=(
            f"{text_format.percent(shares['engines'])} of engines, "
            f"{text_format.percent(shares['proxies'])} of proxies"
        ),
        limit=f"<= {text_format.percent(radius.engines_percent)}, {text_format.percent(radius.proxies_percent)}",
        numbers={"engines_percent": shares["engines"], "proxies_percent": shares["proxies"]},
    )


def _most_at_once(case: CheckInput, members: set[str]) -> tuple[int, float]:
    """Most members hit at once, and the first time."""
    most, when_s = 0, 0.0
    for begun in case.history.outages:
        hit = {
            target
            for one in case.history.outages
            if one.start_s <= begun.start_s and (one.end_s is None or begun.start_s + _HANDOVER_S < one.end_s)
            for target in one.targets
        }
        if len(hit & members) > most:
            most, when_s = len(hit & members), begun.start_s
    return most, when_s


def _status(gone: ProcessExit) -> str:
    return f"signal {-gone.status}" if gone.status < 0 else f"status {gone.status}"
