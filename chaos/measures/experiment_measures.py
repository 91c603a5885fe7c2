"""All reported measures of one experiment."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from chaos.history.history_events import AttemptRecord, ProxySample, RequestRecord
from chaos.history.recorded_history import History
from chaos.measures.impairments import Impairment, impairments
from chaos.measures.possible_goodput import possible_goodput_percent
from chaos.measures.request_periods import (
    ExperimentPhases,
    RequestPeriod,
    StreamStats,
    arrived_between,
    experiment_phases,
    questions,
    request_period,
    stream_stats,
)
from chaos.measures.time_bins import TimeBin, time_bins
from chaos.measures.traffic_shift import TrafficRecovery, TrafficStop, traffic_recoveries, traffic_stops
from chaos.measures.wasted_gpu_time import WastedGpuTime, wasted_gpu_time


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentMeasures:
    """Measures of one experiment.

    ``before``, ``fault``, ``after`` and ``both`` (fault and after) count caller requests. The others cover the
    fault window: ``wasted_gpu_time``; ``calls_per_request``, calls that reached an engine; ``tries_per_request``,
    all attempts of the proxies; ``retries_refused``, retries refused by the retry budget. ``proxies`` is goodput
    in both windows by proxy.
    """

    before: RequestPeriod
    fault: RequestPeriod
    after: RequestPeriod
    both: RequestPeriod
    waste: WastedGpuTime
    calls_per_request: float
    tries_per_request: float | None
    retries_refused: int | None
    silences: Sequence[TrafficStop]
    recoveries: Sequence[TrafficRecovery]
    proxies: Mapping[str, float]
    streams: StreamStats | None
    bins: Sequence[TimeBin]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuresSummary:
    """Measures of a history, with its phases and the goodput possible with a perfect admission limit."""

    phases: ExperimentPhases
    measures: ExperimentMeasures
    possible_fault_percent: float | None
    possible_both_percent: float | None


def measures_summary(history: History) -> MeasuresSummary:
    """Compute all measures from the history alone."""
    some, times = impairments(history), experiment_phases(history)
    return MeasuresSummary(
        phases=times,
        measures=experiment_measures(history, some, times),
        possible_fault_percent=possible_goodput_percent(history, some, times.fault_s, times.healed_s),
        possible_both_percent=possible_goodput_percent(history, some, times.fault_s, times.end_s),
    )


def experiment_measures(
    history: History, some: Sequence[Impairment], times: ExperimentPhases
) -> ExperimentMeasures:
    """Measures of one experiment with these impairments and phases."""
    asked = questions(history.requests)
    tries = arrived_between(history.requests, times.fault_s, times.healed_s)
    both = arrived_between(asked, times.fault_s, times.end_s)
    retries = _grown(history, times, lambda one: one.retries)
    return ExperimentMeasures(
        before=request_period(arrived_between(asked, times.began_s, times.fault_s)),
        fault=request_period(arrived_between(asked, times.fault_s, times.healed_s)),
        after=request_period(arrived_between(asked, times.healed_s, times.end_s)),
        both=request_period(both),
        waste=wasted_gpu_time(history, some, times.fault_s, times.healed_s),
        calls_per_request=_calls_per_request(tries, history.attempts),
        tries_per_request=None if retries is None or not tries else 1.0 + retries / len(tries),
        retries_refused=_grown(history, times, lambda one: one.refused),
        silences=traffic_stops(history, some),
        recoveries=traffic_recoveries(history, some),
        proxies=_by_proxy(both),
        streams=stream_stats(arrived_between(history.requests, times.fault_s, times.end_s)),
        bins=time_bins(history, some),
    )


def _by_proxy(requests: Sequence[RequestRecord]) -> dict[str, float]:
    groups: dict[str, list[RequestRecord]] = {}
    for one in requests:
        groups.setdefault(one.proxy, []).append(one)
    return {name: 100.0 * sum(one.ok for one in group) / len(group) for name, group in sorted(groups.items())}


def _calls_per_request(requests: Sequence[RequestRecord], attempts: Sequence[AttemptRecord]) -> float:
    asked = {one.request_id for one in requests}
    return sum(one.request_id in asked for one in attempts) / len(asked) if asked else 0.0


def _grown(history: History, times: ExperimentPhases, count: Callable[[ProxySample], int | None]) -> int | None:
    """Growth of a proxy counter during the fault; None without samples."""
    total: int | None = None
    for proxy in {one.proxy for one in history.samples}:
        counted = [
            (one.at_s, value)
            for one in history.samples
            if one.proxy == proxy and (value := count(one)) is not None
        ]
        before = [value for at_s, value in counted if at_s <= times.fault_s]
        until = [value for at_s, value in counted if at_s <= times.healed_s]
        if before and until:
            total = (total or 0) + until[-1] - before[-1]
    return total
