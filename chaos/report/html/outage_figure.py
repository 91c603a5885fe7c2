"""Figure of each outage: detect, decide, push, ACK, last request, and recovery. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

from chaos.checks import text_format
from chaos.measures.outage_timeline import STEPS, OutageMoments, by_outage, outage_moments
from chaos.report.html.experiment_view import ExperimentView
from chaos.report.html.figure import LegendKey, ReportFigure, empty_chart, lane_label
from chaos.report.html.svg_chart import (
    RIGHT,
    WIDTH,
    AxisScale,
    ChartBox,
    ChartLabel,
    ChartPath,
    Shape,
    SvgChart,
    axes,
    log_scale,
    number,
)

MOST_OUTAGES: Final = 6
_LEFT: Final = 112.0
_LANE: Final = 17.0
_GAP: Final = 10.0
_BOTTOM: Final = 24.0
_SHORTEST_S: Final = 0.01
_STARTS: Final = frozenset({"broke", "healed"})
_BACK: Final = frozenset({"readmitted", "traffic back"})
_RULED: Final = frozenset({"detected", "decided", "pushed", "ACKed by all", "readmitted"})
"""Steps of a control plane and its agents."""
_CSS: Final = {
    "detected": "detect",
    "decided": "decide",
    "pushed": "pushing",
    "ACKed by all": "ack",
    "last request": "last",
    "readmitted": "decide",
    "traffic back": "ack",
}


def outage_chain(views: Sequence[ExperimentView]) -> ReportFigure:
    """Duration of each step of each outage of engines; with several engines the last one counts."""
    outages = [by_outage(outage_moments(view.history)) for view in views]
    after_s = [after for some in outages for one in some for _, after in _steps(one) if after is not None]
    across = log_scale(_SHORTEST_S, max([1.0, *after_s]), _LEFT, WIDTH - RIGHT - 56)
    return ReportFigure(
        title="From fault to last request, and recovery",
        caption="Seconds after an engine broke, or (+) after it was healed, on a logarithmic scale. With several "
        "engines the last one counts. The longest gap between two steps is the one to shorten. The last request "
        "is the last one before traffic stopped; strays came later, e.g. as probes.",
        keys=(
            LegendKey(css="detect", text="agent detects"),
            LegendKey(css="decide", text="control plane decides"),
            LegendKey(css="pushing", text="pushes"),
            LegendKey(css="ack", text="all Envoys ACK / traffic returns"),
            LegendKey(css="last", text="last request"),
        ),
        charts=tuple(_chain(view, some, across) for view, some in zip(views, outages, strict=True)),
    )


def _chain(view: ExperimentView, some: Sequence[OutageMoments], across: AxisScale) -> SvgChart:
    label = f"Steps of each outage with {view.verdict.subject}"
    if not some:
        return empty_chart("No engine was broken.", label)
    shapes: list[Shape] = []
    y = 0.0
    for one in some[:MOST_OUTAGES]:
        lanes = [step for step in _steps(one) if view.case.has_control_plane or step[0] not in _RULED]
        shapes.append(ChartLabel(x=0, y=y + 13, text=_title(one), css="lane heading"))
        y += _LANE
        for title, after in lanes:
            shapes += _lane(across, y, title, after, one.strays)
            y += _LANE
        y += _GAP
    hidden = len(some) - min(len(some), MOST_OUTAGES)
    grid = [ChartPath(d=f"M{number(across.at(tick))} {_LANE:g}V{number(y)}", css="grid") for tick in across.ticks]
    notes = [
        "No control plane: only the Envoys can eject an engine." if not view.case.has_control_plane else "",
        f"{text_format.count(hidden, 'more outage')} in the table below." if hidden else "",
    ]
    return SvgChart(
        height=y + _BOTTOM,
        shapes=(*grid, *axes(across, None, y), *shapes),
        label=label,
        note=" ".join(one for one in notes if one),
    )


def _lane(across: AxisScale, y: float, title: str, after: float | None, strays: int) -> Iterable[Shape]:
    back = title in _BACK
    yield lane_label(y + 12, f"+ {title}" if back else title)
    if after is None:
        never = title == "last request"
        text, css = ("requests never stopped", "never") if never else ("not observed", "unseen")
        yield ChartLabel(x=across.start + 4, y=y + 12, text=text, css=css)
        return
    x = across.at(max(_SHORTEST_S, after))
    delay = text_format.seconds(after)
    if title == "last request" and strays:
        delay += f", {text_format.count(strays, 'stray')}"
    yield ChartPath(d=f"M{number(across.start)} {number(y + 8)}H{number(x)}", css="stem")
    yield ChartBox(
        x=x - 3.5,
        y=y + 3,
        width=7,
        height=_LANE - 6,
        css=_CSS[title],
        tip=f"{title}: {delay} after it {'was healed' if back else 'broke'}",
    )
    yield ChartLabel(x=x + 8, y=y + 12, text=delay, css="value")


def _steps(one: OutageMoments) -> list[tuple[str, float | None]]:
    """Each step with its delay after the break or the healing."""
    found: list[tuple[str, float | None]] = []
    since_s: float | None = None
    for title, name in STEPS:
        at_s: float | None = getattr(one, name)
        if title in _STARTS:
            since_s = at_s
        elif since_s is not None:
            found.append((title, None if at_s is None else max(0.0, at_s - since_s)))
    return found


def _title(one: OutageMoments) -> str:
    return f"{one.kind} of {text_format.names(one.engine.split(', '))}, at {text_format.moment(one.broke_s)}"
