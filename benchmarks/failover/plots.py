"""Plots of results: goodput by set-up, and the timeline of one experiment."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.failover.contestants import CONTESTANTS
from benchmarks.failover.experiment_setting import service_s
from benchmarks.failover.failover_scenarios import SCENARIOS
from benchmarks.failover.result import Result, counts
from chaos.measures.time_bins import BIN_S

# Okabe and Ito's colours, which people who see few colours tell apart too; one contestant, one colour.
_COLOURS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "switchgear": "#0072B2",
        "switchgear-agentless": "#009E73",
        "switchgear-service-time": "#004C70",
        "envoy": "#999999",
        "naive": "#D55E00",
        "tuned": "#E69F00",
        "static": "#CC79A7",
        "picker": "#56B4E9",
        "sglang-router": "#8B5A2B",
        "vllm-router": "#7B68EE",
        "litellm": "#556B2F",
    }
)
_GOOD, _SHED, _FAILED = "#0072B2", "#E69F00", "#D55E00"
_DPI: Final = 110

mpl.use("Agg")


def overview(results: Sequence[Result], load_percent: float, path: Path) -> None:
    """Goodput and p99 of all answers of each contestant in each scenario, at one load; seeds are averaged."""
    found = [one for one in results if counts(one) and one["load_percent"] == load_percent]
    scenarios = [name for name in SCENARIOS if any(one["scenario"] == name for one in found)]
    contestants = [name for name in CONTESTANTS if any(one["contestant"] == name for one in found)]
    figure = Figure(
        figsize=(max(8.0, 1.1 + 0.25 * len(scenarios) * (len(contestants) + 1)), 6.4), layout="constrained"
    )
    goodput, latency = figure.subplots(2, 1, sharex=True)
    width = 0.84 / max(1, len(contestants))
    for place, contestant in enumerate(contestants):
        at = [number - 0.42 + width * (place + 0.5) for number in range(len(scenarios))]
        for axes, value in ((goodput, _goodput), (latency, _latency)):
            heights = [_mean_of(found, name, contestant, value) for name in scenarios]
            axes.bar(at, heights, 0.92 * width, label=contestant, color=_COLOURS[contestant])
    for number, name in enumerate(scenarios):
        possible = _mean_of(found, name, None, lambda one: float(one["prediction"]["both_percent"]))
        goodput.plot([number - 0.45, number + 0.45], [possible, possible], color="black", linewidth=1.2)
    goodput.plot([], [], color="black", linewidth=1.2, label="possible with this wait")
    goodput.set(ylabel="good answers, % of fault + recovery", ylim=(0, 104))
    latency.set(ylabel="99th percentile of all answers, s")
    latency.set_xticks(range(len(scenarios)), scenarios)
    if found:
        setting = found[0]["setting"]
        promised_s = setting["max_wait_s"] + service_s(setting["tokens"][1])
        latency.axhline(promised_s, color="black", linewidth=1.0, linestyle=":")
        latency.text(-0.48, promised_s, "wait + longest service", va="bottom", fontsize=8)
    # Last, for it ends the scaling to what is drawn.
    latency.set_ylim(bottom=0)
    for axes in (goodput, latency):
        _plain(axes)
    figure.legend(*goodput.get_legend_handles_labels(), loc="outside upper center", ncols=5, frameon=False)
    figure.suptitle(f"{load_percent:g} % load", x=0.01, ha="left", fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI)


def timelines(results: Sequence[Result], path: Path) -> None:
    """Timelines of experiments side by side: outcome of arrivals, and requests in flight."""
    figure = Figure(figsize=(6.2 * len(results), 5.6), layout="constrained")
    grid = figure.subplots(2, len(results), sharex="col", sharey="row", squeeze=False)
    for column, one in enumerate(results):
        _timeline(grid[0][column], grid[1][column], one)
        if column:
            grid[0][column].set_ylabel("")
            grid[1][column].set_ylabel("")
    # Last, for it ends the scaling to what is drawn; rows share it.
    grid[1][0].set_ylim(bottom=0)
    figure.legend(*_labelled(grid[0]), loc="outside upper left", ncols=3, frameon=False, fontsize=9)
    figure.legend(*_labelled(grid[1]), loc="outside upper right", ncols=3, frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI)


def _labelled(row: Iterable[Axes]) -> tuple[list[Artist], list[str]]:
    """Each label of a row of plots once, with an artist that has it."""
    found = {
        label: artist for axes in row for artist, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    return list(found.values()), list(found)


def _timeline(fate: Axes, flight: Axes, one: Result) -> None:
    bins, setting = one["measures"]["bins"], one["setting"]
    at = [each["at_s"] - setting["before_s"] for each in bins]
    parts = [[each[name] / BIN_S for each in bins] for name in ("good", "shed", "failed")]
    fate.stackplot(
        at, *parts, labels=("good", "shed", "failed"), colors=(_GOOD, _SHED, _FAILED), step="post", linewidth=0
    )
    fate.set(title=f"{one['scenario']}, {one['contestant']}, {one['load_percent']:g} % load")
    fate.set_ylabel("arrivals per second, by their end")
    for name, label, colour in (
        ("in_flight", "in flight", _GOOD),
        ("on_bad", "of these on bad engines", _FAILED),
        ("ceiling", "ceiling", "black"),
    ):
        seen = [(second, each[name]) for second, each in zip(at, bins, strict=True) if each[name] is not None]
        if seen:
            flight.plot(*zip(*seen, strict=True), label=label, color=colour, linewidth=1.3)
    flight.set(ylabel="requests", xlabel="seconds from the fault")
    for axes in (fate, flight):
        axes.axvspan(0, setting["fault_s"], color="#f3dede", zorder=0)
        _plain(axes)


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def _goodput(one: Result) -> float:
    return float(one["measures"]["both"]["goodput_percent"] or 0.0)


def _latency(one: Result) -> float:
    return float(one["measures"]["both"]["all_p99_s"] or 0.0)


def _mean_of(results: Sequence[Result], scenario: str, contestant: str | None, value: Any) -> float:
    found = [
        value(one) for one in results if one["scenario"] == scenario and contestant in {None, one["contestant"]}
    ]
    return sum(found) / len(found) if found else 0.0
