"""A figure: one chart per subject, with a legend and a caption. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chaos.checks import text_format
from chaos.report.html.experiment_view import ExperimentView
from chaos.report.html.svg_chart import (
    BOTTOM,
    TOP,
    AxisScale,
    ChartBox,
    ChartLabel,
    ChartPath,
    Shape,
    SvgChart,
    axes,
    number,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LegendKey:
    """One entry of a legend."""

    css: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFigure:
    """``charts`` has one chart per subject, in order; ``caption`` names the unit and what to look for."""

    title: str
    caption: str
    keys: tuple[LegendKey, ...]
    charts: tuple[SvgChart, ...]


def over_time(
    view: ExperimentView,
    *,
    across: AxisScale,
    up: AxisScale,
    height: float,
    marks: Iterable[Shape],
    tips: Sequence[str],
    label: str,
) -> SvgChart:
    """A chart over time with shaded fault windows, marks, and a tooltip per step."""
    bottom = height - BOTTOM
    shapes = [
        *fault_windows(view, across, TOP, bottom),
        *axes(across, up, bottom),
        *marks,
        *(
            ChartBox(
                x=across.at(place * view.step_s),
                y=TOP,
                width=across.at((place + 1) * view.step_s) - across.at(place * view.step_s),
                height=bottom - TOP,
                css="point",
                tip=f"{text_format.moment(place * view.step_s)}: {tip}",
            )
            for place, tip in enumerate(tips)
            if tip
        ),
    ]
    return SvgChart(height=height, shapes=tuple(shapes), label=label)


def fault_windows(view: ExperimentView, across: AxisScale, top: float, bottom: float) -> Iterable[Shape]:
    """Boxes that shade the fault windows."""
    for one in view.windows:
        left, right = across.at(one.start_s), across.at(one.end_s)
        yield ChartBox(
            x=left,
            y=top,
            width=max(1.0, right - left),
            height=bottom - top,
            css="broken",
            tip=f"fault: {one.why}",
        )


def empty_chart(why: str, label: str) -> SvgChart:
    """A chart without data, and the reason."""
    return SvgChart(height=0.0, shapes=(), label=label, empty=why)


def optional_path(d: str, css: str) -> Iterable[ChartPath]:
    """The path, unless it is empty."""
    if d:
        yield ChartPath(d=d, css=css)


def crosses(points: Iterable[tuple[float, float]]) -> str:
    """Path with a small cross on each point."""
    return "".join(f"M{number(x - 2)} {number(y - 2)}l4 4m0-4l-4 4" for x, y in points)


def lane_label(y: float, text: str, css: str = "lane") -> ChartLabel:
    """Label of a row, at the left edge."""
    return ChartLabel(x=0, y=y, text=text, css=css)
