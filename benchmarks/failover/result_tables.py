"""Results for people, in a terminal and in Markdown: rows of text first, dressed up second."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from rich.table import Table

from benchmarks.failover.result import Result, counts

COLUMNS: Final = (
    "scenario",
    "load",
    "contestant",
    "runs",
    "goodput % fault → +after",
    "predicted",
    "p99 good fault / after s",
    "p99 all s",
    "wasted s",
    "calls/request",
    "tries/request",
    "CPU ms/request",
    "shed",
    "other failures",
    "quiet s",
    "back s",
    "targets kept",
)


FORWARDING: Final = frozenset({"Envoys", "router"})
"""Parts of a contestant that requests pass through."""
CONTESTANT_PARTS: Final = FORWARDING | {"control plane", "agents", "picker"}


def rows(results: Sequence[Result], *, kept: Callable[[Result], bool] = counts) -> list[tuple[str, ...]]:
    """A row for each scenario, load and contestant, over its seeds; runs that are not ``kept`` are left out."""
    groups: dict[tuple[str, float, str], list[Result]] = {}
    for one in results:
        if kept(one):
            groups.setdefault((one["scenario"], one["load_percent"], one["contestant"]), []).append(one)
    return [_row(key, some) for key, some in groups.items()]


def table(results: Sequence[Result], title: str) -> Table:
    """The rows for a terminal."""
    shown = Table(*COLUMNS, title=title)
    for row in rows(results):
        shown.add_row(*row)
    return shown


def markdown(results: Sequence[Result], *, kept: Callable[[Result], bool] = counts) -> str:
    """The rows as a Markdown table."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    lines += [f"| {' | '.join(row)} |" for row in rows(results, kept=kept)]
    return "\n".join(lines)


def missed(one: Result) -> list[str]:
    """The promises that were not kept, with what was seen instead."""
    return [
        f"{check['what']} {check['seen']} ({check['limit']})" for check in one["checks"] if check["kept"] is False
    ]


def _row(key: tuple[str, float, str], some: Sequence[Result]) -> tuple[str, ...]:
    scenario, load, contestant = key
    measures = [one["measures"] for one in some]
    silences = [silence["quiet_s"] for one in measures for silence in one["silences"]]
    recoveries = [recovery["back_s"] for one in measures for recovery in one["recoveries"]]
    shed = [one["both"]["reasons"].get("shed", 0) for one in measures]
    failed = [one["both"]["requests"] - one["both"]["good"] for one in measures]
    return (
        scenario,
        f"{load:g} %",
        contestant,
        str(len(some)),
        f"{_mean(one['fault']['goodput_percent'] for one in measures):.1f} → "
        f"{_mean(one['both']['goodput_percent'] for one in measures):.1f}",
        f"{_mean(one['prediction']['both_percent'] for one in some):.1f}",
        f"{_worst(one['fault']['good_p99_s'] for one in measures)} / "
        f"{_worst(one['after']['good_p99_s'] for one in measures)}",
        _worst(one["both"]["all_p99_s"] for one in measures),
        f"{_mean(one['waste']['wasted_s'] for one in measures):.0f}",
        f"{_mean(one['calls_per_request'] for one in measures):.2f}",
        _tries(one["tries_per_request"] for one in measures),
        _cpu(some),
        f"{_mean(shed):.0f}",
        f"{_mean(failed) - _mean(shed):.0f}",
        _latest(silences),
        _latest(recoveries),
        _kept(some),
    )


def _tries(values: Iterable[float | None]) -> str:
    """Only Envoys count them."""
    known = [one for one in values if one is not None]
    return f"{_mean(known):.2f}" if known else "-"


def _cpu(some: Sequence[Result]) -> str:
    """Processor time per request that arrived, of what forwards it and, where there is more, of all together."""
    forwarding = _mean(cpu_ms_per_request(one, FORWARDING) for one in some)
    everything = _mean(cpu_ms_per_request(one, CONTESTANT_PARTS) for one in some)
    return f"{forwarding:.2f}" if everything == forwarding else f"{forwarding:.2f} / {everything:.2f}"


def cpu_ms_per_request(one: Result, parts: Collection[str]) -> float | None:
    """Processor time of these parts of a contestant for one request that arrived; None without any request."""
    measures = one["measures"]
    requests = measures["before"]["requests"] + measures["both"]["requests"]
    setting = one["setting"]
    seconds = setting["before_s"] + setting["fault_s"] + setting["after_s"]
    used = [percent for part, percent in one["use_percent"]["processes"].items() if part in parts]
    return 10.0 * sum(used) * seconds / requests if requests else None


def _kept(some: Sequence[Result]) -> str:
    told = [check["kept"] for one in some for check in one["checks"] if check["kept"] is not None]
    return f"{sum(told)} of {len(told)}"


def _mean(values: Iterable[float | None]) -> float:
    found = [float(one) for one in values if one is not None]
    return sum(found) / len(found) if found else float("nan")


def _worst(values: Iterable[float | None]) -> str:
    found = [float(one) for one in values if one is not None]
    return f"{max(found):.2f}" if found else "-"


def _latest(values: Sequence[float | None]) -> str:
    if not values:
        return "-"
    return "never" if None in values else f"{max(one for one in values if one is not None):.2f}"
