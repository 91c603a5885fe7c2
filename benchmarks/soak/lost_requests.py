"""Lost requests: their tries, concurrent faults, and whether they could have been served.

A request is lost if its caller got no good answer. It counts against Switchgear if an engine was healthy all the
time it waited and no process needed for the answer was starved of CPU. Excused: requests held by a killed Envoy,
and streams already begun when their engine crashed, failed or hung. Streams cut for other reasons count.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from http import HTTPStatus
from typing import Any, Final

from benchmarks.soak.cpu_starvation import CpuWait, starvation
from benchmarks.soak.fault_plan import SoakFault
from chaos.history.request_outcomes import RequestOutcome

BEFORE_S: Final = 10.0
"""What happened so long before a request arrived may be why it was lost: a ceiling, a weight, an ejection."""


ENDS_STREAMS: Final = frozenset({SoakFault.HANG, SoakFault.CRASH, SoakFault.ERRORS})
"""Faults of an engine that end what has begun there: by the engine itself, or so that callers need not wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultInterval:
    """Something that was wrong for a while, with an engine, a proxy, or the control plane."""

    what: SoakFault
    from_s: float
    to_s: float
    engine: str = ""
    proxy: str = ""

    def __str__(self) -> str:
        return (
            f"{' '.join(filter(None, (self.what, self.engine, self.proxy)))} {self.from_s:.1f}..{self.to_s:.1f} s"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakAttempt:
    """One try at a request, from the book of the engine that saw it; seconds count from the soak's beginning."""

    engine: str
    number: int
    from_s: float
    to_s: float
    fate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRequest:
    """One lost or slow request. ``excuse`` says why it could not be served; empty if it could."""

    request_id: str
    proxy: str
    streaming: bool
    at_s: float
    left_late_s: float
    lasted_s: float
    status: int
    reason: str
    refusal: str
    attempts: tuple[SoakAttempt, ...]
    meanwhile: tuple[str, ...]
    excuse: str

    def __str__(self) -> str:
        tried = ", then ".join(
            f"{one.engine} ({one.fate}, {one.to_s - one.from_s:.1f} s)" for one in self.attempts
        )
        return (
            f"{'stream ' if self.streaming else ''}{self.request_id} by {self.proxy} at {self.at_s:.1f} s: "
            f"{self.reason} after {self.lasted_s:.1f} s "
            f"(status {self.status}{', ' + self.refusal if self.refusal else ''}); tried {tried or 'no engine'}"
            + (f"; excused: {self.excuse}" if self.excuse else "")
        )


def attempts_of(engine: str, book: Mapping[str, Any], began_s: float) -> Iterable[tuple[str, SoakAttempt]]:
    """What an engine's book says, by the id of the request."""
    for call in book["calls"]:
        yield (
            call["request_id"],
            SoakAttempt(
                engine=engine,
                number=call["attempt"],
                from_s=round(call["arrived_at_s"] - began_s, 3),
                to_s=round(call["closed_at_s"] - began_s, 3),
                fate=f"{call['outcome']} {call['reason']}".strip(),
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakTimeline:
    """Context of a soak's requests: tries by request, faults, CPU waits."""

    attempts: Mapping[str, Sequence[SoakAttempt]]
    spells: Sequence[FaultInterval]
    waits: Sequence[CpuWait]
    engines: tuple[str, ...]
    began_s: float

    def request_record(self, one: RequestOutcome) -> LostRequest:
        """One request with its tries and faults; the excuse applies if it was lost."""
        from_s, to_s = one.arrived_at_s - self.began_s, one.ended_at_s - self.began_s
        around = [spell for spell in self.spells if spell.from_s < to_s and spell.to_s > from_s - BEFORE_S]
        unhealthy = {spell.engine for spell in around if spell.to_s > from_s}
        # Starvation just before its arrival may be why it was refused.
        kept = starvation(self.waits, from_s, to_s) or starvation(self.waits, from_s - BEFORE_S, to_s)
        served = any(name not in unhealthy for name in self.engines)
        tried = tuple(sorted(self.attempts.get(one.request_id, ()), key=lambda tried: tried.from_s))
        beyond_help = _beyond_help(one, from_s, to_s, tried, around)
        return LostRequest(
            request_id=one.request_id,
            proxy=one.target,
            streaming=one.streaming,
            at_s=round(from_s, 3),
            left_late_s=round(one.lag_s, 3),
            lasted_s=round(one.latency_s, 3),
            status=one.status,
            reason=one.reason.value,
            refusal=one.refusal,
            attempts=tried,
            meanwhile=() if beyond_help else tuple(map(str, around)),  # the excuse says all there is to say
            excuse=beyond_help or (kept if served else "no engine was healthy all the time"),
        )

    def losses(self, outcomes: Iterable[RequestOutcome]) -> list[LostRequest]:
        """Every request that got no good answer, in the order of their arrival."""
        return sorted((self.request_record(one) for one in outcomes if not one.ok), key=lambda loss: loss.at_s)

    def slowest(self, outcomes: Iterable[RequestOutcome], most: int) -> list[LostRequest]:
        """The good answers that took longest, that one first."""
        good = (one for one in outcomes if one.ok)
        return [self.request_record(one) for one in nlargest(most, good, key=lambda one: one.latency_s)]


def _beyond_help(
    one: RequestOutcome, from_s: float, to_s: float, tried: Sequence[SoakAttempt], around: Sequence[FaultInterval]
) -> str:
    """Why a begun request could not be saved: its Envoy was killed, or its engine ended it; else empty."""
    for spell in around:
        if spell.proxy == one.target and spell.from_s < to_s and spell.to_s > from_s:
            return f"its Envoy was away: {spell}"
    if not (one.streaming and one.status == HTTPStatus.OK and tried):
        return ""
    last = tried[-1]  # who answered with headers is not left for another
    for spell in around:
        mine = spell.engine == last.engine and spell.what in ENDS_STREAMS
        if mine and spell.from_s < last.to_s and spell.to_s > last.from_s:
            return f"it had begun on an engine that ended it: {spell}"
    return ""
