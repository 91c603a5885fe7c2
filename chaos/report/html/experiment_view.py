"""Time series of one experiment, in equal steps, for the figures. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from chaos.checks import text_format
from chaos.checks.check_input import CheckInput, check_input
from chaos.checks.experiment_verdict import ExperimentVerdict
from chaos.history.recorded_history import History
from chaos.history.request_outcomes import quantile
from chaos.measures.ejection_spans import EjectionSpan
from chaos.measures.time_bins import BIN_S, TimeBin, time_bins
from chaos.measures.wasted_gpu_time import wasted_calls

MOST_STEPS: Final = 160
"""Enough for the width of a chart; more only makes the page larger."""


@dataclass(frozen=True, kw_only=True)
class ExperimentView:
    """``step_s`` and ``seconds`` are equal for all subjects of a scenario."""

    verdict: ExperimentVerdict
    case: CheckInput
    step_s: float
    seconds: float

    @property
    def history(self) -> History:
        """The recorded history."""
        return self.case.history

    @property
    def steps(self) -> int:
        """Number of steps."""
        return max(1, round(self.history.end_s / self.step_s))

    @cached_property
    def bins(self) -> Sequence[TimeBin]:
        """Arrivals and outcomes per step."""
        return time_bins(self.history, self.case.impairments, self.step_s)

    @cached_property
    def windows(self) -> Sequence[EjectionSpan]:
        """Fault windows, overlaps merged; ``why`` names the faults."""
        found: list[EjectionSpan] = []
        for one in sorted(self.history.outages, key=lambda outage: outage.start_s):
            end_s = self.history.end_s if one.end_s is None else one.end_s
            why = text_format.faults([one])
            if found and one.start_s <= found[-1].end_s:
                last = found.pop()
                found.append(
                    EjectionSpan(start_s=last.start_s, end_s=max(last.end_s, end_s), why=f"{last.why}; {why}")
                )
            else:
                found.append(EjectionSpan(start_s=one.start_s, end_s=end_s, why=why))
        return found

    @cached_property
    def medians_s(self) -> Sequence[float | None]:
        """Median latency of good answers, by arrival time of the request."""
        found: list[list[float]] = [[] for _ in range(self.steps)]
        for one in self.history.requests:
            if one.ok and (place := self._place(one.at_s)) is not None:
                found[place].append(one.latency_s)
        return [quantile(some, 0.5) for some in found]

    @cached_property
    def in_flight(self) -> Mapping[str, Sequence[int | None]]:
        """Requests in flight per engine, summed over Envoys, at the end of each step; None without a sample."""
        newest: list[dict[str, Mapping[str, int]]] = [{} for _ in range(self.steps)]
        for one in self.history.samples:
            if (place := self._place(one.at_s)) is not None:
                newest[place][one.proxy] = one.in_flight
        return {
            engine: [sum(some.get(engine, 0) for some in step.values()) if step else None for step in newest]
            for engine in self.history.slots
        }

    @cached_property
    def wasted(self) -> tuple[Sequence[float], Sequence[float]]:
        """Slots with wasted work per step, and slots whose work a crash destroyed."""
        wasted, destroyed = [0.0] * self.steps, [0.0] * self.steps
        for one in wasted_calls(self.history, self.case.impairments):
            into = destroyed if one.destroyed else wasted
            end_s = min(one.start_s + one.slot_s, self.steps * self.step_s)
            first, last = int(max(0.0, one.start_s) / self.step_s), int(end_s / self.step_s)
            for place in range(first, min(last, self.steps - 1) + 1):
                begin_s = place * self.step_s
                part_s = min(end_s, begin_s + self.step_s) - max(one.start_s, begin_s)
                into[place] += max(0.0, part_s) / self.step_s
        return wasted, destroyed

    @cached_property
    def retries_per_s(self) -> Sequence[float] | None:
        """Retries by the Envoys' counters; None if not sampled."""
        return self._grown("retries")

    @cached_property
    def refused_per_s(self) -> Sequence[float] | None:
        """Retries refused by the budget; None if not sampled."""
        return self._grown("refused")

    @cached_property
    def ejected(self) -> Mapping[str, Mapping[str, Sequence[EjectionSpan]]]:
        """Ejections by the Envoys themselves, by engine and Envoy."""
        open_since: dict[tuple[str, str], float] = {}
        last_s: dict[str, float] = {}
        found: dict[str, dict[str, list[EjectionSpan]]] = {}

        def close(engine: str, proxy: str, end_s: float) -> None:
            span = EjectionSpan(
                start_s=open_since.pop((engine, proxy)), end_s=end_s, why=f"ejected by {proxy} itself"
            )
            found.setdefault(engine, {}).setdefault(proxy, []).append(span)

        for one in self.history.samples:
            last_s[one.proxy] = one.at_s
            for engine, proxy in [key for key in open_since if key[1] == one.proxy and key[0] not in one.ejected]:
                close(engine, proxy, one.at_s)
            for engine in one.ejected:
                open_since.setdefault((engine, one.proxy), one.at_s)
        for engine, proxy in list(open_since):
            close(engine, proxy, last_s[proxy])
        return found

    def _grown(self, counter: str) -> Sequence[float] | None:
        found = [0.0] * self.steps
        known: dict[str, int] = {}
        for one in self.history.samples:
            value: int | None = getattr(one, counter)
            if value is None:
                continue
            before = known.get(one.proxy)
            known[one.proxy] = value
            place = self._place(one.at_s)
            if before is not None and place is not None:
                # A counter that fell was reset.
                found[place] += (value - before if value >= before else value) / self.step_s
        return found if known else None

    def _place(self, at_s: float) -> int | None:
        place = int(at_s // self.step_s)
        return place if 0 <= place < self.steps else None


def experiment_views(side_by_side: Sequence[ExperimentVerdict]) -> tuple[ExperimentView, ...]:
    """One view per subject of a scenario, on a common time axis."""
    seconds = max(one.history.began.seconds for one in side_by_side)
    step_s = max(BIN_S, seconds / MOST_STEPS)
    return tuple(
        ExperimentView(verdict=one, case=check_input(one.history), step_s=step_s, seconds=seconds)
        for one in side_by_side
    )
