"""Everything that is reported of one experiment, in one value."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from chaos.history.events import Attempt, ProxySample, Request
from chaos.history.history import History
from chaos.measures.bins import Bin, bins
from chaos.measures.periods import Period, Phases, Streams, arrived, period, phases, questions, streams
from chaos.measures.possible import possible_percent
from chaos.measures.quiet import Recovery, Silence, recoveries, silences
from chaos.measures.trouble import Trouble, troubles
from chaos.measures.waste import Waste, waste


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """``before``, ``fault``, ``after`` and ``both`` (the last two together) count questions. ``waste`` is of the
    fault window. ``calls_per_request`` are those that reached an engine, and ``tries_per_request`` all that an
    Envoy made; both of requests and time of the fault window, in which ``retries_refused`` found the budget for
    retries used up. ``proxies`` is goodput in both windows by proxy.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The measures of a history, with its times and what a perfect ceiling would have made of it."""

    phases: Phases
    measures: Measures
    possible_fault_percent: float | None
    possible_both_percent: float | None


def summary(history: History) -> Summary:
    """All of it, from the history alone."""
    some, times = troubles(history), phases(history)
    return Summary(
        phases=times,
        measures=measured(history, some, times),
        possible_fault_percent=possible_percent(history, some, times.fault_s, times.healed_s),
        possible_both_percent=possible_percent(history, some, times.fault_s, times.end_s),
    )


def measured(history: History, some: Sequence[Trouble], times: Phases) -> Measures:
    """The numbers of one experiment with these troubles and times."""
    asked = questions(history.requests)
    tries = arrived(history.requests, times.fault_s, times.healed_s)
    both = arrived(asked, times.fault_s, times.end_s)
    retries = _grown(history, times, lambda one: one.retries)
    return Measures(
        before=period(arrived(asked, times.began_s, times.fault_s)),
        fault=period(arrived(asked, times.fault_s, times.healed_s)),
        after=period(arrived(asked, times.healed_s, times.end_s)),
        both=period(both),
        waste=waste(history, some, times.fault_s, times.healed_s),
        calls_per_request=_calls_per_request(tries, history.attempts),
        tries_per_request=None if retries is None or not tries else 1.0 + retries / len(tries),
        retries_refused=_grown(history, times, lambda one: one.refused),
        silences=silences(history, some),
        recoveries=recoveries(history, some),
        proxies=_by_proxy(both),
        streams=streams(arrived(history.requests, times.fault_s, times.end_s)),
        bins=bins(history, some),
    )


def _by_proxy(requests: Sequence[Request]) -> dict[str, float]:
    groups: dict[str, list[Request]] = {}
    for one in requests:
        groups.setdefault(one.proxy, []).append(one)
    return {name: 100.0 * sum(one.ok for one in group) / len(group) for name, group in sorted(groups.items())}


def _calls_per_request(requests: Sequence[Request], attempts: Sequence[Attempt]) -> float:
    asked = {one.request_id for one in requests}
    return sum(one.request_id in asked for one in attempts) / len(asked) if asked else 0.0


def _grown(history: History, times: Phases, count: Callable[[ProxySample], int | None]) -> int | None:
    """How much a counter of the Envoys grew from the fault's beginning to its end; None where nobody looked."""
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
