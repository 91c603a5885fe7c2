"""What an experiment comes to, in numbers. Pure: from a history and its setting.

Requests belong to the window in which they *arrived*. ``fault`` is the fault window, ``after`` the time from its
end until no more requests come, ``both`` the two together; their answers may come later.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.failover.history import Attempt, History, ProxySample
from benchmarks.failover.quiet import Recovery, Silence, recoveries, silences
from benchmarks.failover.setting import Setting
from benchmarks.failover.waste import Waste, waste
from chaos.outcomes import Outcome, Reason, quantile

BIN_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """The requests of one window; seconds, None where there is nothing to measure. ``reasons`` counts those that
    were not good, by reason.
    """

    requests: int
    good: int
    goodput_percent: float | None
    good_p50_s: float | None
    good_p99_s: float | None
    all_p50_s: float | None
    all_p99_s: float | None
    reasons: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """What callers of streams saw in both windows. ``cut``: those that began and did not end as they should;
    ``gap``: the longest silence inside a good one.
    """

    streams: int
    cut: int
    first_token_p99_s: float | None
    gap_p99_s: float | None
    gap_max_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Half a second of arrivals and what became of them; requests in flight and the ceilings at its end, by the
    Envoys, None where nobody looked. ``on_bad``: those in flight on engines that are bad then.
    """

    at_s: float
    arrived: int
    good: int
    shed: int
    failed: int
    worst_s: float | None
    in_flight: int | None
    on_bad: int | None
    ceiling: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """All that is reported of one experiment. ``calls_per_request`` are those that reached an engine, and
    ``tries_per_request`` all that an Envoy made; both of requests and time of the fault window, in which
    ``retries_refused`` found the budget for retries used up. ``proxies`` is goodput in both windows by proxy.
    """

    before: Period
    fault: Period
    after: Period
    both: Period
    waste: Waste
    calls_per_request: float
    tries_per_request: float | None
    retries_refused: int | None
    silences: Sequence[Silence]
    recoveries: Sequence[Recovery]
    proxies: Mapping[str, float]
    streams: Streams | None
    bins: Sequence[Bin]


def measured(history: History, setting: Setting) -> Measures:
    """The numbers of one experiment."""
    both = _arrived(history.outcomes, history.fault_s, history.end_s)
    fault = _arrived(history.outcomes, history.fault_s, history.healed_s)
    retries = _in_fault(history, lambda one: one.retries)
    return Measures(
        before=period(_arrived(history.outcomes, history.began_s, history.fault_s)),
        fault=period(fault),
        after=period(_arrived(history.outcomes, history.healed_s, history.end_s)),
        both=period(both),
        waste=waste(history, {engine: setting.kind(engine).slots for engine in range(setting.engines)}),
        calls_per_request=_calls_per_request(fault, history.attempts),
        tries_per_request=None if retries is None or not fault else 1.0 + retries / len(fault),
        retries_refused=_in_fault(history, lambda one: one.refused),
        silences=silences(history, setting),
        recoveries=recoveries(history, setting),
        proxies={
            name: 100.0 * sum(one.ok for one in both if one.target == name) / count
            for name, count in sorted(_count(both).items())
        },
        streams=_streams(both),
        bins=bins(history),
    )


def period(outcomes: Sequence[Outcome]) -> Period:
    """The numbers of some requests."""
    good_s = [one.latency_s for one in outcomes if one.ok]
    all_s = [one.latency_s for one in outcomes]
    reasons: dict[str, int] = {}
    for one in outcomes:
        if not one.ok:
            said = f"{one.reason.value} {one.status}" if one.reason is Reason.HTTP_ERROR else one.reason.value
            reasons[said] = reasons.get(said, 0) + 1
    return Period(
        requests=len(outcomes),
        good=len(good_s),
        goodput_percent=100.0 * len(good_s) / len(outcomes) if outcomes else None,
        good_p50_s=quantile(good_s, 0.5),
        good_p99_s=quantile(good_s, 0.99),
        all_p50_s=quantile(all_s, 0.5),
        all_p99_s=quantile(all_s, 0.99),
        reasons=dict(sorted(reasons.items())),
    )


def bins(history: History) -> list[Bin]:
    """The experiment, half a second at a time; ``at_s`` counts from its beginning."""
    found = []
    count = round((history.end_s - history.began_s) / BIN_S)
    for place in range(count):
        start_s = history.began_s + place * BIN_S
        some = _arrived(history.outcomes, start_s, start_s + BIN_S)
        newest = {
            one.proxy: one for one in history.samples if start_s <= one.at_s < start_s + BIN_S
        }  # the last of each proxy wins
        bad = {one.engine for one in history.outages if one.start_s <= start_s + BIN_S and start_s < one.end_s}
        ceilings = [one.ceiling for one in newest.values() if one.ceiling is not None]
        found.append(
            Bin(
                at_s=place * BIN_S,
                arrived=len(some),
                good=sum(one.ok for one in some),
                shed=sum(one.reason is Reason.SHED for one in some),
                failed=sum(not one.ok and one.reason is not Reason.SHED for one in some),
                worst_s=max((one.latency_s for one in some if one.ok), default=None),
                in_flight=sum(sum(one.in_flight.values()) for one in newest.values()) if newest else None,
                on_bad=(
                    sum(one.in_flight.get(engine, 0) for one in newest.values() for engine in bad)
                    if newest
                    else None
                ),
                ceiling=sum(ceilings) if ceilings else None,
            )
        )
    return found


def _arrived(outcomes: Sequence[Outcome], from_s: float, to_s: float) -> list[Outcome]:
    return [one for one in outcomes if from_s <= one.arrived_at_s < to_s]


def _count(outcomes: Sequence[Outcome]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in outcomes:
        found[one.target] = found.get(one.target, 0) + 1
    return found


def _calls_per_request(outcomes: Sequence[Outcome], attempts: Sequence[Attempt]) -> float:
    asked = {one.request_id for one in outcomes}
    return sum(one.request_id in asked for one in attempts) / len(asked) if asked else 0.0


def _in_fault(history: History, count: Callable[[ProxySample], int]) -> int | None:
    """How much a counter of the Envoys grew from the fault's beginning to its end; None where nobody looked."""
    total: int | None = None
    for proxy in {one.proxy for one in history.samples}:
        counted = [one for one in history.samples if one.proxy == proxy and count(one) >= 0]
        before = [count(one) for one in counted if one.at_s <= history.fault_s]
        until = [count(one) for one in counted if one.at_s <= history.healed_s]
        if before and until:
            total = (total or 0) + until[-1] - before[-1]
    return total


def _streams(outcomes: Sequence[Outcome]) -> Streams | None:
    streams = [one for one in outcomes if one.streaming]
    if not streams:
        return None
    first_s = [one.first_token_s for one in streams if one.ok and one.first_token_s is not None]
    gaps_s = [one.longest_gap_s for one in streams if one.ok and one.longest_gap_s is not None]
    begun = [one for one in streams if one.first_token_s is not None]
    return Streams(
        streams=len(streams),
        cut=sum(not one.ok for one in begun)
        + sum(
            one.first_token_s is None and one.reason in {Reason.TRUNCATED, Reason.STREAM_ERROR} for one in streams
        ),
        first_token_p99_s=quantile(first_s, 0.99),
        gap_p99_s=quantile(gaps_s, 0.99),
        gap_max_s=max(gaps_s, default=None),
    )
