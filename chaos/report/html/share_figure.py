"""Figure of each engine's share of the calls: before, during and after the faults. Pure."""

from collections.abc import Sequence

from chaos.measures.traffic_shift import capacities_per_s
from chaos.report.html.experiment_view import ExperimentView
from chaos.report.html.figure import LegendKey, ReportFigure, empty_chart, lane_label
from chaos.report.html.fleet_figures import FOOT, ROW, engine_label, impaired_engines, omitted_note, shown_engines
from chaos.report.html.svg_chart import (
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    AxisScale,
    ChartPath,
    Shape,
    SvgChart,
    axes,
    number,
)


def traffic_shares(views: Sequence[ExperimentView]) -> ReportFigure:
    """Share of calls per engine before, during and after the faults."""
    every = [_shares(view) for view in views]
    highest = max(
        (value for one in every for _, parts, _ in one for value in parts if value is not None), default=2.0
    )
    top = max(2.0, float(-(-highest // 1)))
    step = max(1.0, float(-(-top // 6)))
    across = AxisScale(
        low=0.0,
        high=top,
        start=LEFT,
        end=WIDTH - RIGHT,
        ticks=tuple(step * place for place in range(int(top / step) + 1)),
    )
    return ReportFigure(
        title="Share of each engine",
        caption='Calls per engine as a multiple of its fair share by capacity (1 is fair). "During" spans the '
        "first fault to the last healing. Broken engines (red names) should be below 1 then, the lower the longer "
        "they were broken. An engine that fails fast and is not ejected attracts more than its share. Afterwards "
        "all should be near 1.",
        keys=(
            LegendKey(css="before", text="before"),
            LegendKey(css="during", text="during the faults"),
            LegendKey(css="after", text="after"),
        ),
        charts=tuple(_share_chart(view, across, rows) for view, rows in zip(views, every, strict=True)),
    )


def _shares(view: ExperimentView) -> list[tuple[str, tuple[float | None, ...], bool]]:
    """Each shown engine with its share before, during and after the faults, and whether it was ever broken."""
    phases = view.case.phases
    capacity = capacities_per_s(view.history)
    whole = sum(capacity.values())
    counts: list[dict[str, int]] = []
    for from_s, to_s in (
        (0.0, phases.fault_s),
        (phases.fault_s, phases.healed_s),
        (phases.healed_s, phases.end_s),
    ):
        found: dict[str, int] = {}
        for one in view.history.attempts:
            if from_s <= one.at_s < to_s and one.engine in capacity:
                found[one.engine] = found.get(one.engine, 0) + 1
        counts.append(found)
    return [
        (
            engine,
            tuple(
                found.get(engine, 0) / sum(found.values()) / (capacity[engine] / whole) if found else None
                for found in counts
            ),
            bool(impaired_engines(view, engine)),
        )
        for engine in shown_engines(view)
    ]


def _share_chart(
    view: ExperimentView, across: AxisScale, rows: Sequence[tuple[str, tuple[float | None, ...], bool]]
) -> SvgChart:
    label = f"Share of calls per engine with {view.verdict.subject}"
    if not view.history.attempts:
        return empty_chart("No call logs of the engines.", label)
    bottom = TOP + ROW * len(rows)
    shapes: list[Shape] = [
        *axes(across, None, bottom + 2, unit="x fair"),
        ChartPath(d=f"M{number(across.at(1.0))} {number(TOP)}V{number(bottom)}", css="slots"),
    ]
    for place, (engine, parts, broken) in enumerate(rows):
        y = TOP + ROW * place + 8
        known = [across.at(one) for one in parts if one is not None]
        shapes.append(lane_label(y + 4, engine_label(view, engine), "lane faulty-name" if broken else "lane"))
        if len(known) > 1:
            shapes.append(ChartPath(d=f"M{number(min(known))} {number(y)}H{number(max(known))}", css="grid"))
        for css, phase, part in zip(
            ("before", "during", "after"), ("before", "during the faults", "after"), parts, strict=True
        ):
            if part is not None:
                tip = f"{engine}, {phase}: {part:.2f} of its fair share"
                shapes.append(ChartPath(d=_mark(css, across.at(part), y), css=css, tip=tip))
    note = omitted_note(view, [engine for engine, _, _ in rows])
    return SvgChart(height=bottom + FOOT, shapes=tuple(shapes), label=label, note=note)


def _mark(css: str, x: float, y: float) -> str:
    """A distinct shape per phase, independent of colour."""
    if css == "before":
        return f"M{number(x - 4)} {number(y)}a4 4 0 1 0 8 0a4 4 0 1 0-8 0z"
    if css == "during":
        return f"M{number(x)} {number(y - 5)}l5 5l-5 5l-5-5z"
    return f"M{number(x - 3.5)} {number(y - 3.5)}h7v7h-7z"
