"""Transitions of one engine between two decisions."""

from collections.abc import Iterator
from dataclasses import replace

from engine.report import Verdict
from xds_server.decide.decisions import BreakerPhase, BreakerStatus, Ejector, EngineDecision, Health
from xds_server.decide.diff import policy_fields
from xds_server.decide.diff.change import Change, ChangeKind, Subject
from xds_server.model.pod_state import PodPhase


def engine_changes(subject: Subject, known: EngineDecision | None, now: EngineDecision) -> Iterator[Change]:
    """The transitions of one engine; from None, what deviates from the declaration."""
    if known is not None and _state(known) == _state(now):
        return  # a newer reason for the same state: by far the most frequent case
    template = Change(
        kind=ChangeKind.HEALTH,
        subject=subject,
        before="",
        after="",
        reason=now.reason,
        rule=policy_fields.engine_rule(now, known),
        returns=now.returns,
        until_s=now.until_s,
    )
    was = Health.HEALTHY if known is None else known.health
    if was is not now.health:
        yield replace(
            template,
            before="" if known is None else known.health.value,
            after=now.health.value,
            alarm=now.health is not Health.HEALTHY,
        )
    elif _verdict_text(None if known is None else known.verdict) != _verdict_text(
        now.verdict
    ) and not _starts_good(known, now):
        before = "" if known is None else _verdict_text(known.verdict)
        yield replace(template, kind=ChangeKind.VERDICT, before=before, after=_verdict_text(now.verdict))
    elif known is not None and now.health is not Health.HEALTHY and known.ejector is not now.ejector:
        yield replace(
            template,
            kind=ChangeKind.EJECTOR,
            before=_ejector_text(known.ejector),
            after=_ejector_text(now.ejector),
        )
    elif (PodPhase.PRESENT if known is None else known.pod_phase) is not now.pod_phase:
        yield _pod_phase_change(template, known, now)
    yield from _flag_changes(template, known, now)


def _flag_changes(template: Change, known: EngineDecision | None, now: EngineDecision) -> Iterator[Change]:
    """Transitions of an engine besides its health."""
    kept = known is not None and known.floor
    if kept is not now.floor:
        yield replace(
            template,
            kind=ChangeKind.KEPT,
            before=_yes(kept, "kept in rotation", "ejectable"),
            after=_yes(now.floor, "kept in rotation", "ejectable"),
            alarm=now.floor,
        )
    part_before, part = 100.0 if known is None else known.traffic_percent, now.traffic_percent
    if part_before != part:
        yield replace(
            template,
            kind=ChangeKind.TRIAL,
            before=f"{part_before:g} %",
            after=f"{part:g} %",
            rule=policy_fields.SLOWER_THAN
            if (now.paced or (known and known.paced))
            else policy_fields.TRIAL_SHARE,
            numbers={"traffic_percent": part},
        )
    cut_before = known is not None and known.cut
    if cut_before is not now.cut:
        yield replace(
            template,
            kind=ChangeKind.CUT,
            before=_yes(cut_before, "on", "off"),
            after=_yes(now.cut, "on", "off"),
            rule=policy_fields.CUT_HUNG,
        )
    shadow_before = None if known is None or known.shadow is None else known.shadow.health
    shadow = None if now.shadow is None else now.shadow.health
    if shadow_before is not shadow:
        yield _shadow_change(template, shadow_before, now)


def _pod_phase_change(template: Change, known: EngineDecision | None, now: EngineDecision) -> Change:
    """The transition of a pod's phase."""
    return replace(
        template,
        kind=ChangeKind.STANDING,
        before="" if known is None else known.pod_phase.value,
        after=now.pod_phase.value,
        reason=now.pod_state.reason if now.pod_state is not None else "the orchestrator reports no problem",
        rule="",
        returns="",
        until_s=None,
    )


def _shadow_change(template: Change, before: Health | None, now: EngineDecision) -> Change:
    would = now.shadow
    return replace(
        template,
        kind=ChangeKind.SHADOW,
        before="as decided" if before is None else f"would be {before}",
        after="as decided" if would is None else f"would be {would.health}",
        reason=now.reason if would is None else would.reason,
        rule=policy_fields.MODE if would is None else policy_fields.engine_rule(would),
        returns="" if would is None else would.returns,
        until_s=None if would is None else would.until_s,
    )


def circuit_breaker_changes(subject: Subject, known: BreakerStatus | None, now: BreakerStatus) -> Iterator[Change]:
    """The transition of a breaker's phase."""
    was = BreakerPhase.CLOSED if known is None else known.phase
    if was is now.phase:
        return
    reason, rule = {
        BreakerPhase.OPEN: ("its calls failed", policy_fields.ERROR_RATE),
        BreakerPhase.TRIAL: ("cooldown or canaries passed: it gets trial requests", policy_fields.TRIAL_SHARE),
        BreakerPhase.CLOSED: ("its trial succeeded", policy_fields.TRIAL_CALLS),
    }[now.phase]
    yield Change(
        kind=ChangeKind.BREAKER,
        subject=subject,
        before=was.value,
        after=now.phase.value,
        reason=reason,
        rule=rule,
        returns="its cooldown; then trial requests" if now.phase is BreakerPhase.OPEN else "",
        until_s=now.until_s if now.phase is BreakerPhase.OPEN else None,
        numbers={"opens": now.opens},
    )


def straggler_changes(subject: Subject, was_slow: bool, slow: bool) -> Iterator[Change]:
    """The engine became clearly slower than its peers, or recovered."""
    if was_slow is not slow:
        yield Change(
            kind=ChangeKind.STRAGGLER,
            subject=subject,
            before=_yes(was_slow, "slow", "normal"),
            after=_yes(slow, "slow", "normal"),
            reason="clearly slower than its peers" if slow else "as fast as its peers again",
            rule=policy_fields.SLOWER_THAN,
        )


def _state(decision: EngineDecision) -> tuple[object, ...]:
    """Everything whose change is a transition."""
    shadow = decision.shadow
    return (
        decision.health,
        decision.verdict,
        decision.pod_phase,
        decision.ejector,
        decision.floor,
        decision.traffic_percent,
        decision.cut,
        None if shadow is None else shadow.health,
    )


def _starts_good(known: EngineDecision | None, now: EngineDecision) -> bool:
    """Whether this is the first report of a healthy engine, which is not news."""
    return known is None and now.verdict is not None and now.verdict.good


def _yes(holds: bool, yes: str, no: str) -> str:
    return yes if holds else no


def _ejector_text(ejector: Ejector | None) -> str:
    return "none" if ejector is None else ejector.value


def _verdict_text(verdict: Verdict | None) -> str:
    """The verdict for the log; busy and ready are one, because a loaded engine alternates all day."""
    if verdict is None:
        return "no report"
    return "producing" if verdict.good else verdict.value
