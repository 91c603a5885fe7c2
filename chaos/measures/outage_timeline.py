"""Timeline of each outage: broke, detected, decided, pushed, ACKed, last request, healed, back. Pure.

Times are those of the history; None means not observed or did not happen.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from chaos.history.recorded_history import History
from chaos.measures.impairments import Impairment, ejectable, impairments
from chaos.measures.traffic_shift import traffic_recoveries, traffic_stops

GOOD_VERDICTS: Final = frozenset({"ready", "busy", "producing"})
ROUNDED_S: Final = 0.01
"""Rounding of the ledger's clock: a push may appear this much before its decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageMoments:
    """Timeline of one engine in one outage.

    ``detected_s``: its agent first reported it broken. ``decided_s``: the control plane ejected it. ``pushed_s``:
    first push after that; ``acked_s``: all proxies accepted theirs. ``last_request_s``: last request before
    traffic stopped; ``strays``: requests after that. ``healed_s``: the fault ended; ``readmitted_s``: the control
    plane returned it to rotation; ``back_s``: it had its traffic share again.
    """

    outage: str
    kind: str
    engine: str
    broke_s: float
    detected_s: float | None
    decided_s: float | None
    pushed_s: float | None
    acked_s: float | None
    last_request_s: float | None
    strays: int
    healed_s: float | None
    readmitted_s: float | None
    back_s: float | None


STEPS: Final = (
    ("broke", "broke_s"),
    ("detected", "detected_s"),
    ("decided", "decided_s"),
    ("pushed", "pushed_s"),
    ("ACKed by all", "acked_s"),
    ("last request", "last_request_s"),
    ("healed", "healed_s"),
    ("readmitted", "readmitted_s"),
    ("traffic back", "back_s"),
)
"""Moments in order: label and field of ``OutageMoments``."""


def outage_moments(history: History) -> tuple[OutageMoments, ...]:
    """One timeline per engine and outage that breaks engines, by start time."""
    some = impairments(history)
    quiet = {(one.outage, one.engine): one for one in traffic_stops(history, some)}
    back = {
        (engine, one.healed_s): one.healed_s + one.back_s
        for one in traffic_recoveries(history, some)
        for engine in one.engines
        if one.back_s is not None
    }
    found = []
    for trouble in ejectable(some):
        silence = quiet.get((trouble.outage, trouble.engine))
        decided_s = _decided_s(history, trouble.engine, trouble.start_s, trouble.end_s, out=True)
        pushed_s, acked_s = _pushed_and_acked_s(history, decided_s)
        healed_s = trouble.end_s if trouble.end_s < float("inf") else None
        found.append(
            OutageMoments(
                outage=trouble.outage,
                kind=trouble.kind,
                engine=trouble.engine,
                broke_s=trouble.start_s,
                detected_s=_detected_s(history, trouble),
                decided_s=decided_s,
                pushed_s=pushed_s,
                acked_s=acked_s,
                last_request_s=(
                    None if silence is None or silence.quiet_s is None else trouble.start_s + silence.quiet_s
                ),
                strays=0 if silence is None else silence.strays,
                healed_s=healed_s,
                readmitted_s=(
                    None
                    if healed_s is None
                    else _decided_s(history, trouble.engine, healed_s, float("inf"), out=False)
                ),
                back_s=_of_group(back, trouble),
            )
        )
    return tuple(found)


def by_outage(some: Iterable[OutageMoments]) -> tuple[OutageMoments, ...]:
    """One timeline per outage: each moment is that of its last engine; None if one engine lacks it.

    ``engine`` lists all of them.
    """
    groups: dict[str, list[OutageMoments]] = {}
    for one in some:
        groups.setdefault(one.outage, []).append(one)
    return tuple(_last(group) for group in groups.values())


def _last(group: Sequence[OutageMoments]) -> OutageMoments:
    first = group[0]
    return OutageMoments(
        outage=first.outage,
        kind=first.kind,
        engine=", ".join(one.engine for one in group),
        broke_s=min(one.broke_s for one in group),
        detected_s=_latest(one.detected_s for one in group),
        decided_s=_latest(one.decided_s for one in group),
        pushed_s=_latest(one.pushed_s for one in group),
        acked_s=_latest(one.acked_s for one in group),
        last_request_s=_latest(one.last_request_s for one in group),
        strays=sum(one.strays for one in group),
        healed_s=_latest(one.healed_s for one in group),
        readmitted_s=_latest(one.readmitted_s for one in group),
        back_s=_latest(one.back_s for one in group),
    )


def _latest(times_s: Iterable[float | None]) -> float | None:
    known: list[float] = []
    for one in times_s:
        if one is None:
            return None
        known.append(one)
    return max(known, default=None)


def _detected_s(history: History, trouble: Impairment) -> float | None:
    return min(
        (
            one.at_s
            for one in history.detected
            if one.engine == trouble.engine and trouble.at(one.at_s) and one.verdict not in GOOD_VERDICTS
        ),
        default=None,
    )


def _decided_s(history: History, engine: str, from_s: float, to_s: float, *, out: bool) -> float | None:
    return min(
        (
            one.at_s
            for one in history.decided
            if one.engine == engine and one.out is out and from_s <= one.at_s < to_s
        ),
        default=None,
    )


def _pushed_and_acked_s(history: History, decided_s: float | None) -> tuple[float | None, float | None]:
    """First push after a decision, and when the last proxy had accepted its first push."""
    if decided_s is None:
        return None, None
    first: dict[str, tuple[float, str, str]] = {}
    for push in history.pushed:
        if push.at_s >= decided_s - ROUNDED_S:
            first.setdefault(push.proxy, (push.at_s, push.type, push.nonce))
    acks_s = [
        min(
            (
                one.at_s
                for one in history.answered
                if (one.proxy, one.type, one.nonce) == (proxy, kind, nonce) and not one.error
            ),
            default=None,
        )
        for proxy, (_, kind, nonce) in first.items()
    ]
    told = {one.proxy for one in history.pushed}
    pushed_s = min((at_s for at_s, _, _ in first.values()), default=None)
    return pushed_s, _latest(acks_s) if told == first.keys() else None


def _of_group(back: dict[tuple[str, float], float], trouble: Impairment) -> float | None:
    """Recovery time of engines healed together: that of the last one."""
    times_s = [
        back_s
        for (engine, healed_s), back_s in back.items()
        if engine == trouble.engine and healed_s >= trouble.end_s
    ]
    return min(times_s, default=None)
