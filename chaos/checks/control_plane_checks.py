"""What the control plane owes its proxies: configuration that they take, and nothing lost without it. Pure."""

import math
from collections.abc import Iterator
from typing import Final

from chaos.checks import text_format
from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.check_input import CheckInput
from chaos.faults.target_kind import TargetKind
from chaos.history.history_events import ConfigPush, ConfigReply, ProxySample
from chaos.history.recorded_history import Outage
from chaos.measures.ejection_spans import EjectionSpan, control_plane_ejections
from chaos.measures.impairments import outages_of_target_kind

ANSWER_S: Final = 3.0
"""A proxy that is well answers a push within this; so late it may still be on its way when the history ends."""

_SETTLED_S: Final = 3.0
"""So long after an engine, a proxy or a caller was healed its fault may still be felt."""

_COUNTED_S: Final = 1.0
"""An engine that was let in again is in a proxy's counters within this."""

_FEWEST: Final = 20
_NOISE_PERCENT: Final = 1.0
_NOISE_REQUESTS: Final = 2


def configuration_converged(case: CheckInput) -> CheckFinding | None:
    """Every proxy took the last it was told of every type; a rejection is made good by a later push."""
    if not case.has_control_plane:
        return None
    if not case.history.pushed:
        why = "no push was seen on the wire, although there was a control plane"
        return CheckFinding(check="configurationConverged", answer=CheckResult.UNKNOWN, why=why)
    last: dict[tuple[str, str], ConfigPush] = {(one.proxy, one.type): one for one in case.history.pushed}
    refused: list[tuple[ConfigPush, ConfigReply]] = []
    kept: list[tuple[ConfigPush, ConfigReply]] = []
    silent: list[ConfigPush] = []
    open_at_end: list[ConfigPush] = []
    for push in last.values():
        answer = _answer(case, push)
        if answer is not None and answer.error:
            (kept if _has_it_all_the_same(case, push) else refused).append((push, answer))
        elif answer is None:
            (open_at_end if _excused(case, push) else silent).append(push)
    nacks = sum(bool(one.error) for one in case.history.answered)
    told = f"{len(case.history.pushed)} pushes, {nacks} of them rejected"
    numbers = {"pushes": len(case.history.pushed), "rejected": nacks, "unanswered": len(silent)}
    if refused or silent:
        why = "; ".join(
            [
                f"{push.proxy} rejected the last {push.type} it got, at {text_format.moment(answer.at_s)}, "
                f"and got no "
                f"better one: {answer.error}"
                for push, answer in refused
            ]
            + [
                f"{push.proxy} never answered the last {push.type}, sent at {text_format.moment(push.at_s)}"
                for push in silent
            ]
        )
        found, at_s = CheckResult.NO, min(push.at_s for push in (*silent, *(one for one, _ in refused)))
        measured = text_format.count(len(refused) + len(silent), "proxy and type", "proxies and types") + " behind"
    elif open_at_end:
        late = max(open_at_end, key=lambda one: one.at_s)
        found, at_s, measured = CheckResult.UNKNOWN, None, "not told"
        why = f"{late.proxy} had not answered the last {late.type}, of {text_format.moment(late.at_s)}, at the end"
    else:
        found, at_s, measured = CheckResult.YES, None, "all have the last"
        why = f"every proxy has the last of each type it was sent ({told})"
        for push, answer in kept:
            why += (
                f"; {push.proxy} rejected its last {push.type}, at {text_format.moment(answer.at_s)}, and "
                f"what it kept "
                "is what was decided in the end"
            )
    return CheckFinding(
        check="configurationConverged",
        answer=found,
        why=why,
        measured=measured,
        limit="every last push ACKed",
        at_s=at_s,
        numbers=numbers,
    )


def nothing_lost_without_control_plane(case: CheckInput) -> CheckFinding | None:
    """While the control plane is hit and engines are well, callers and proxies notice nothing."""
    hits = outages_of_target_kind(case.history, TargetKind.CONTROL_PLANE)
    if not hits or not case.has_control_plane:
        return None
    before = EjectionSpan(start_s=0.0, end_s=max(0.0, case.phases.fault_s - _SETTLED_S))
    usual = _lost_percent(case, [before])
    forgotten = [told for outage in hits for told in _forgotten(case, outage)]
    healthy = [span for outage in hits for span in _undisturbed(case, outage)]
    asked, good = _asked(case, healthy)
    lost_percent = 100.0 * (asked - good) / asked if asked else 0.0
    allowed = math.ceil(asked * (usual + _NOISE_PERCENT) / 100.0)
    lost = asked - good > max(allowed, _NOISE_REQUESTS)
    during = text_format.faults(hits)
    if forgotten or lost:
        answer = CheckResult.NO
        parts = (
            [f"{asked - good} of {text_format.count(asked, 'question')} were lost while engines were well"]
            if lost
            else []
        )
        why = f"during {during}: {'; '.join([*parts, *forgotten])}; before, {text_format.percent(usual)} were lost"
    elif not case.history.samples:
        answer = CheckResult.UNKNOWN
        why = f"nobody looked what configuration the proxies had during {during}"
    elif asked < _FEWEST:
        # What is lost while engines are broken too is for goodput to judge.
        answer = CheckResult.YES
        why = (
            f"during {during} no proxy lost configuration; something else was wrong all the while "
            f"({text_format.count(asked, 'question')} apart), so nothing is said of answers"
        )
    else:
        answer = CheckResult.YES
        why = (
            f"during {during} {good} of {text_format.count(asked, 'question')} asked while engines were "
            f"well got a good "
            f"answer, and no proxy lost configuration"
        )
    return CheckFinding(
        check="nothingLostWithoutControlPlane",
        answer=answer,
        why=why,
        measured=f"{text_format.percent(lost_percent)} lost",
        limit=f"<= {text_format.percent(usual + _NOISE_PERCENT)} lost",
        at_s=min(one.start_s for one in hits) if answer is CheckResult.NO else None,
        numbers={"lost_percent": lost_percent, "usual_lost_percent": usual, "questions": asked},
    )


def _answer(case: CheckInput, push: ConfigPush) -> ConfigReply | None:
    """The first to this push; nonces begin anew with every connection."""
    said = (push.proxy, push.type, push.nonce)
    return next(
        (
            one
            for one in case.history.answered
            if one.at_s >= push.at_s and (one.proxy, one.type, one.nonce) == said
        ),
        None,
    )


def _has_it_all_the_same(case: CheckInput, push: ConfigPush) -> bool:
    """Whether a proxy that rejected its last endpoints keeps exactly those engines out that are out at the end.

    What was rejected may since have been taken back; then what the proxy kept is right, and nothing is sent.
    """
    last = next((one for one in reversed(case.history.samples) if one.proxy == push.proxy), None)
    if push.type != "eds" or last is None or last.at_s < case.end_s - ANSWER_S:
        return False
    out = {
        engine
        for engine in case.history.slots
        for span in control_plane_ejections(case.history, engine, last.at_s)
        if span.end_s >= last.at_s
    }
    return set(last.unhealthy) == out and last.sent.keys() >= case.history.slots.keys()


def _excused(case: CheckInput, push: ConfigPush) -> bool:
    """Whether it was sent just before the end, or to or by somebody who was hit then."""
    if push.at_s > (case.history.ended_s or case.end_s) - ANSWER_S:
        return True
    hits = [one for one in case.history.outages if push.proxy in one.targets]
    return any(
        one.start_s <= push.at_s + ANSWER_S and (one.end_s is None or push.at_s < one.end_s)
        for one in (*hits, *outages_of_target_kind(case.history, TargetKind.CONTROL_PLANE))
    )


def _undisturbed(case: CheckInput, outage: Outage) -> list[EjectionSpan]:
    """The parts of an outage of the control plane in which nothing else is or was lately wrong."""
    end_s = case.end_s if outage.end_s is None else min(outage.end_s, case.end_s)
    others = sorted(
        (
            one.start_s - _SETTLED_S,
            end_s if one.end_s is None else one.end_s + _SETTLED_S,
        )
        for one in case.history.outages
        if one not in outages_of_target_kind(case.history, TargetKind.CONTROL_PLANE)
    )
    found, since_s = [], outage.start_s
    for start_s, until_s in others:
        if start_s > since_s:
            found.append(EjectionSpan(start_s=since_s, end_s=min(start_s, end_s)))
        since_s = max(since_s, until_s)
    if since_s < end_s:
        found.append(EjectionSpan(start_s=since_s, end_s=end_s))
    return [one for one in found if one.long_s > 0]


def _asked(case: CheckInput, spans: list[EjectionSpan]) -> tuple[int, int]:
    some = [one for one in case.questions if any(span.start_s <= one.at_s < span.end_s for span in spans)]
    return len(some), sum(one.ok for one in some)


def _lost_percent(case: CheckInput, spans: list[EjectionSpan]) -> float:
    asked, good = _asked(case, spans)
    return 100.0 * (asked - good) / asked if asked else 0.0


def _forgotten(case: CheckInput, outage: Outage) -> Iterator[str]:
    """Every proxy that knew an engine when the outage began and did not all the while.

    A control plane that is only given a bad policy goes on deciding: an engine that it took out may leave the
    endpoints.
    """
    end_s = case.end_s if outage.end_s is None else min(outage.end_s, case.end_s)
    out = {engine: control_plane_ejections(case.history, engine, case.end_s) for engine in case.history.slots}
    for proxy in sorted({one.proxy for one in case.history.samples}):
        known: ProxySample | None = None
        for sample in (one for one in case.history.samples if one.proxy == proxy and one.at_s < end_s):
            if sample.at_s < outage.start_s:
                known = sample
            elif known is not None:
                gone = {
                    engine
                    for engine in known.sent.keys() - sample.sent.keys()
                    if not any(one.start_s <= sample.at_s < one.end_s + _COUNTED_S for one in out.get(engine, ()))
                }
                if gone:
                    yield (
                        f"{proxy} no longer knew {text_format.names(sorted(gone))} at "
                        f"{text_format.moment(sample.at_s)}"
                    )
                    break
