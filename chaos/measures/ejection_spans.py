"""Ejections by the ledger and by the proxies, and times without a reason for them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from chaos.faults.target_kind import TargetKind
from chaos.history.recorded_history import History, Outage
from chaos.measures.impairments import fault_of_event, stays_dead


@dataclass(frozen=True, slots=True, kw_only=True)
class EjectionSpan:
    """An ejection in ``[start_s, end_s)``, with the reason ``why``."""

    start_s: float
    end_s: float
    why: str = ""

    @property
    def long_s(self) -> float:
        """Length in seconds."""
        return self.end_s - self.start_s


def control_plane_ejections(history: History, engine: str, until_s: float) -> list[EjectionSpan]:
    """When the control plane ejected the engine."""
    found = []
    since_s, why = None, ""
    for one in history.decided:
        if one.engine != engine or one.out is None or one.at_s > until_s:
            continue
        if one.out and since_s is None:
            since_s, why = one.at_s, f"ejected by the control plane at {one.at_s:.1f} s: {one.evidence}"
        elif not one.out and since_s is not None:
            found.append(EjectionSpan(start_s=since_s, end_s=one.at_s, why=why))
            since_s = None
    if since_s is not None:
        found.append(EjectionSpan(start_s=since_s, end_s=until_s, why=why))
    return found


def proxy_ejections(history: History, engine: str, until_s: float) -> list[EjectionSpan]:
    """When a proxy excluded the engine, by its own outlier detection or by configuration."""
    found = []
    for proxy in sorted({one.proxy for one in history.samples}):
        since_s, why, last_s = None, "", 0.0
        for one in history.samples:
            if one.proxy != proxy or one.at_s > until_s:
                continue
            last_s = one.at_s
            flagged = engine in one.ejected or engine in one.unhealthy
            if flagged and since_s is None:
                since_s = one.at_s
                state = "ejected by outlier detection" if engine in one.ejected else "unhealthy"
                why = f"{state} at {proxy} since {one.at_s:.1f} s"
            elif not flagged and since_s is not None:
                found.append(EjectionSpan(start_s=since_s, end_s=one.at_s, why=why))
                since_s = None
        if since_s is not None:
            found.append(EjectionSpan(start_s=since_s, end_s=last_s, why=why))
    return found


def healthy_spans(history: History, engine: str, until_s: float) -> list[EjectionSpan]:
    """When neither the engine, nor its observers, nor the control plane had a fault."""
    ill = sorted(
        (one.start_s, until_s if one.end_s is None or _for_good(one) else one.end_s)
        for one in history.outages
        if _concerns(one, engine)
    )
    found, since_s = [], 0.0
    for start_s, end_s in ill:
        if start_s > since_s:
            found.append(EjectionSpan(start_s=since_s, end_s=min(start_s, until_s)))
        since_s = max(since_s, end_s)
    if since_s < until_s:
        found.append(EjectionSpan(start_s=since_s, end_s=until_s))
    return found


def span_intersection(some: Sequence[EjectionSpan], others: Sequence[EjectionSpan]) -> list[EjectionSpan]:
    """Overlaps of both lists, with the reasons of the first."""
    return [
        EjectionSpan(start_s=max(one.start_s, other.start_s), end_s=min(one.end_s, other.end_s), why=one.why)
        for one in some
        for other in others
        if max(one.start_s, other.start_s) < min(one.end_s, other.end_s)
    ]


def _concerns(outage: Outage, engine: str) -> bool:
    """Whether the outage justifies an ejection: it hits the engine, the control plane or a proxy."""
    fault = fault_of_event(outage.fault)
    return engine in outage.targets or fault is None or fault.aim in {TargetKind.CONTROL_PLANE, TargetKind.PROXIES}


def _for_good(outage: Outage) -> bool:
    fault = fault_of_event(outage.fault)
    return fault is not None and any(stays_dead(fault.actions(target)) for target in outage.targets)
