"""Control plane checks: proxies accept its configuration and lose nothing without it. Pure."""

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
"""Longest time for a healthy proxy to answer a push; later pushes may be unanswered when the history ends."""

_SETTLED_S: Final = 3.0
"""A healed fault may still have effects for this long."""

_COUNTED_S: Final = 1.0
"""An engine returned to rotation appears in a proxy's counters within this time."""

_FEWEST: Final = 20
_NOISE_PERCENT: Final = 1.0
_NOISE_REQUESTS: Final = 2


def configuration_converged(case: CheckInput) -> CheckFinding | None:
    """Every proxy accepted (ACK) its last push of every type; a later ACK makes up for a NACK."""
    if not case.has_control_plane:
        return None
    if not case.history.pushed:
        why = "the control plane sent no configuration"
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
    told = f"{text_format.count(len(case.history.pushed), 'push', 'pushes')}, {nacks} refused"
    numbers = {"pushes": len(case.history.pushed), "rejected": nacks, "unanswered": len(silent)}
    if refused or silent:
        why = "; ".join(
            [
                f"{push.proxy} refused (NACK) its last {push.type} push at {text_format.moment(answer.at_s)}: "
                f"{answer.error}"
                for push, answer in refused
            ]
            + [
                f"{push.proxy} never answered its last {push.type} push, sent at {text_format.moment(push.at_s)}"
                for push in silent
            ]
        )
        found, at_s = CheckResult.NO, min(push.at_s for push in (*silent, *(one for one, _ in refused)))
        measured = text_format.count(len(refused) + len(silent), "proxy and type", "proxies and types") + " behind"
    elif open_at_end:
        late = max(open_at_end, key=lambda one: one.at_s)
        found, at_s, measured = CheckResult.UNKNOWN, None, "unknown"
        why = (
            f"{late.proxy} had not answered its last {late.type} push, sent at "
            f"{text_format.moment(late.at_s)}, by the end"
        )
    else:
        found, at_s, measured = CheckResult.YES, None, "all current"
        why = f"every proxy accepted the last push of each type ({told})"
        for push, answer in kept:
            why += (
                f"; {push.proxy} refused its last {push.type} push at {text_format.moment(answer.at_s)}, but the "
                f"endpoints it kept match the final decision"
            )
    return CheckFinding(
        check="configurationConverged",
        answer=found,
        why=why,
        measured=measured,
        limit="last push of each type ACKed",
        at_s=at_s,
        numbers=numbers,
    )


def nothing_lost_without_control_plane(case: CheckInput) -> CheckFinding | None:
    """A control plane fault with healthy engines loses no requests and no configuration."""
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
            [f"{asked - good} of {text_format.count(asked, 'caller request')} failed while engines were healthy"]
            if lost
            else []
        )
        why = f"during {during}: {'; '.join([*parts, *forgotten])}; failures before: {text_format.percent(usual)}"
    elif not case.history.samples:
        answer = CheckResult.UNKNOWN
        why = f"no samples of the proxies' configuration during {during}"
    elif asked < _FEWEST:
        # The goodput check judges failures while engines are broken too.
        answer = CheckResult.YES
        why = (
            f"during {during} no proxy lost configuration; goodput is not judged, because other faults overlapped "
            f"(only {text_format.count(asked, 'caller request')} outside them)"
        )
    else:
        answer = CheckResult.YES
        why = (
            f"during {during} {good} of {text_format.count(asked, 'caller request')} succeeded while engines were "
            f"healthy, and no proxy lost configuration"
        )
    return CheckFinding(
        check="nothingLostWithoutControlPlane",
        answer=answer,
        why=why,
        measured=f"{text_format.percent(lost_percent)} failed",
        limit=f"<= {text_format.percent(usual + _NOISE_PERCENT)} failed",
        at_s=min(one.start_s for one in hits) if answer is CheckResult.NO else None,
        numbers={"lost_percent": lost_percent, "usual_lost_percent": usual, "questions": asked},
    )


def _answer(case: CheckInput, push: ConfigPush) -> ConfigReply | None:
    """First reply to this push; nonces restart with every connection."""
    wanted = (push.proxy, push.type, push.nonce)
    return next(
        (
            one
            for one in case.history.answered
            if one.at_s >= push.at_s and (one.proxy, one.type, one.nonce) == wanted
        ),
        None,
    )


def _has_it_all_the_same(case: CheckInput, push: ConfigPush) -> bool:
    """Whether a proxy that refused its last endpoints already ejects exactly the engines ejected at the end.

    The refused change may have been reverted; then the proxy's old configuration is right and no push follows.
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
    """Whether it was sent just before the end, or while the proxy or the control plane had a fault."""
    if push.at_s > (case.history.ended_s or case.end_s) - ANSWER_S:
        return True
    hits = [one for one in case.history.outages if push.proxy in one.targets]
    return any(
        one.start_s <= push.at_s + ANSWER_S and (one.end_s is None or push.at_s < one.end_s)
        for one in (*hits, *outages_of_target_kind(case.history, TargetKind.CONTROL_PLANE))
    )


def _undisturbed(case: CheckInput, outage: Outage) -> list[EjectionSpan]:
    """Parts of a control plane outage without any other current or recent fault."""
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
    """Proxies that lost an engine's endpoint during the outage.

    With a bad policy the control plane keeps deciding, so engines that it ejected are allowed to disappear.
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
                    yield (f"{proxy} lost {text_format.names(sorted(gone))} at {text_format.moment(sample.at_s)}")
                    break
