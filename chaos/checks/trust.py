"""Whether the experiment can be believed: the bench, what it broke, and who ended that nobody ended. Pure."""

from typing import Final

from chaos.checks import words
from chaos.checks.case import Case
from chaos.checks.finding import Answer, Finding
from chaos.faults.fault import Aim
from chaos.history.events import Gone
from chaos.measures.trouble import aimed
from chaos.measures.validity import FAIR
from chaos.measures.validity import bench as bench_of
from chaos.scenario.model import BlastRadius

_OURS: Final = ("control-plane", "agent-", "proxy-")
"""How the names of processes begin that policies answer for; others are the lab's own."""

_HANDOVER_S: Final = 1.0
"""Where one target comes after another, healing the first may take so much of the second's time."""


def history_complete(case: Case) -> Finding:
    """Whether the history tells everything; where it does not, no other yes is believed."""
    return Finding(
        check="historyComplete",
        answer=Answer.UNKNOWN if case.flaws else Answer.YES,
        why="; ".join(case.flaws) or "it goes to its end, and all of it was understood",
        measured=words.count(len(case.flaws), "gap"),
        limit="none",
    )


def bench(case: Case) -> Finding:
    """Whether the machine kept up; where it did not, nothing that it measured is held for or against anybody."""
    found = bench_of(
        case.history, FAIR, fault_s=case.phases.fault_s, engines_until_s=case.phases.fault_s or case.end_s
    )
    return Finding(
        check="bench",
        answer=Answer.UNKNOWN if found.problems else Answer.YES,
        why="; ".join(found.problems)
        or f"requests left at most {words.seconds(found.lag_max_s)} late, 99 of 100 within "
        f"{words.seconds(found.lag_p99_s)}{_others(case)}",
        measured=f"{words.seconds(found.lag_p99_s)} late (p99)",
        limit=f"<= {words.seconds(FAIR.lag_p99_s)}",
        numbers={
            "lag_p99_s": found.lag_p99_s,
            "lag_max_s": found.lag_max_s,
            "engine_delay_p99_s": found.engine_delay_p99_s,
            "path_p99_s": found.path_p99_s,
        },
    )


def _others(case: Case) -> str:
    used = case.history.used
    return (
        "" if used is None else f"; other programs used {max(0.0, used.machine - used.ours):.0f} % of the machine"
    )


def processes(case: Case) -> Finding:
    """Whether the control plane, the proxies and the agents lived as long as nobody killed them.

    Another process of the lab that ends spoils the experiment, and nobody can be blamed for it.
    """
    blamed = [one for one in case.history.gone if one.process.startswith(_OURS)]
    others = [one for one in case.history.gone if one not in blamed]
    told = [
        f"{one.process} ended by itself at {words.moment(one.at_s)} ({_status(one)})" for one in (*blamed, *others)
    ]
    return Finding(
        check="processes",
        answer=Answer.NO if blamed else Answer.UNKNOWN if others else Answer.YES,
        why="; ".join(told) or "nobody ended who had not been killed",
        measured=words.count(len(case.history.gone), "process", "processes") + " gone",
        limit="none",
        at_s=min((one.at_s for one in case.history.gone), default=None),
        numbers={"gone": len(case.history.gone)},
    )


def ran_to_the_end(case: Case) -> Finding | None:
    """Whether the scenario's abort condition was never met; absent where it has none and nobody stopped it."""
    aborted = case.history.aborted
    condition = 0.0 if case.spec is None else case.spec.abort.goodput_below_percent
    if aborted is None:
        if not condition:
            return None
        return Finding(
            check="ranToTheEnd",
            answer=Answer.YES,
            why=f"goodput did not stay below {words.percent(condition)}",
            limit=f"never below {words.percent(condition)} for long",
        )
    return Finding(
        check="ranToTheEnd",
        answer=Answer.NO if condition else Answer.UNKNOWN,
        why=f"stopped at {words.moment(aborted.at_s)}: {aborted.why}",
        measured=words.moment(aborted.at_s),
        limit=words.moment(case.history.began.seconds),
        at_s=aborted.at_s,
    )


def blast_radius(case: Case) -> Finding:
    """Whether no more was hit at once than the scenario allows."""
    radius = BlastRadius() if case.spec is None else case.spec.blast_radius
    engines, proxies = set(case.history.slots), {one.name for one in case.history.began.proxies}
    problems = []
    shares = {}
    for what, members, allowed in (
        ("engines", engines, radius.engines_percent),
        ("Envoys", proxies, radius.proxies_percent),
    ):
        most, at_s = _most_at_once(case, members)
        shares[what] = 100.0 * most / len(members) if members else 0.0
        if shares[what] > allowed + 1e-9:
            problems.append(
                f"at {words.moment(at_s)} {most} of {len(members)} {what} were hit at once, "
                f"{words.percent(shares[what])} where {words.percent(allowed)} are allowed"
            )
    hits = aimed(case.history, Aim.CONTROL_PLANE)
    if hits and not radius.control_plane:
        problems.append(f"the control plane was hit at {words.moment(hits[0].start_s)}, which is not allowed")
    return Finding(
        check="blastRadius",
        answer=Answer.NO if problems else Answer.YES,
        why="; ".join(problems)
        or f"at most {words.percent(shares['engines'])} of engines and {words.percent(shares['Envoys'])} of "
        "Envoys were hit at once",
        measured=f"{words.percent(shares['engines'])} of engines, {words.percent(shares['Envoys'])} of Envoys",
        limit=f"<= {words.percent(radius.engines_percent)}, {words.percent(radius.proxies_percent)}",
        numbers={"engines_percent": shares["engines"], "proxies_percent": shares["Envoys"]},
    )


def _most_at_once(case: Case, members: set[str]) -> tuple[int, float]:
    """How many of them were hit at once at most, and when first."""
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


def _status(gone: Gone) -> str:
    return f"signal {-gone.status}" if gone.status < 0 else f"status {gone.status}"
