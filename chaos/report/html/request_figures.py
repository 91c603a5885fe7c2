"""Figures of goodput, latency, admission, retries and wasted GPU time. Pure."""

from collections.abc import Sequence
from typing import Final

from chaos.checks import text_format
from chaos.history.request_outcomes import OutcomeReason
from chaos.measures.time_bins import TimeBin
from chaos.report.html.experiment_view import ExperimentView
from chaos.report.html.figure import LegendKey, ReportFigure, crosses, empty_chart, optional_path, over_time
from chaos.report.html.svg_chart import (
    BOTTOM,
    TOP,
    AxisScale,
    ChartPath,
    SvgChart,
    bars,
    line,
    linear_scale,
    log_scale,
    number,
    time_scale,
)

HEIGHT: Final = 168.0
_LOW: Final = 132.0
_MOST_CROSSES: Final = 240


def goodput_figure(views: Sequence[ExperimentView]) -> ReportFigure:
    """Requests over time, by outcome."""
    across = time_scale(views[0].seconds)
    highest = max((one.arrived / view.step_s for view in views for one in view.bins), default=0.0)
    up = linear_scale(highest, HEIGHT)
    return ReportFigure(
        title="Goodput",
        caption="Requests per second, by arrival time; shaded while a fault is active. Look for the good share "
        "inside the shade, and for the time to full recovery after it.",
        keys=(
            LegendKey(css="good", text="complete answer in time"),
            LegendKey(css="shed", text="shed"),
            LegendKey(css="failed", text="failed, cut or too late"),
        ),
        charts=tuple(_goodput(view, across, up) for view in views),
    )


def _goodput(view: ExperimentView, across: AxisScale, up: AxisScale) -> SvgChart:
    label = f"Goodput of {view.verdict.subject}, second by second"
    if not view.history.requests:
        return empty_chart("No request was seen.", label)
    step_s = view.step_s
    good = [one.good / step_s for one in view.bins]
    shed = [(one.good + one.shed) / step_s for one in view.bins]
    every = [one.arrived / step_s for one in view.bins]
    marks = [
        *optional_path(bars(across, up, step_s, [0.0] * len(good), good), "good"),
        *optional_path(bars(across, up, step_s, good, shed), "shed"),
        *optional_path(bars(across, up, step_s, shed, every), "failed"),
    ]
    tips = [f"{one.arrived} arrived: {one.good} good, {one.shed} shed, {one.failed} failed" for one in view.bins]
    return over_time(view, across=across, up=up, height=HEIGHT, marks=marks, tips=tips, label=label)


def latency_figure(views: Sequence[ExperimentView]) -> ReportFigure:
    """Latency of good answers, and time to failure of the others."""
    across = time_scale(views[0].seconds)
    times_s = [one.latency_s for view in views for one in view.history.requests if one.latency_s > 0]
    good_s = [value for view in views for value in view.medians_s if value]
    up = log_scale(max(0.01, 0.8 * min(good_s, default=0.1)), max(times_s, default=1.0), HEIGHT - BOTTOM, TOP)
    return ReportFigure(
        title="Latency",
        caption="Seconds from arrival to the end of the answer, by arrival time, on a logarithmic scale. Lines "
        "that climb inside the shade are late answers. A cross is a request without an answer, at the time it "
        "took to fail (or at the edge of the scale): a fast refusal is better than a slow one.",
        keys=(
            LegendKey(css="median", text="good answers, median"),
            LegendKey(css="worst", text="good answers, slowest"),
            LegendKey(css="cross", text="failed, cut or too late"),
            LegendKey(css="turned", text="shed"),
        ),
        charts=tuple(_latency(view, across, up) for view in views),
    )


def _latency(view: ExperimentView, across: AxisScale, up: AxisScale) -> SvgChart:
    label = f"Latency of {view.verdict.subject} over time"
    if not view.history.requests:
        return empty_chart("No request was seen.", label)
    bad = [one for one in view.history.requests if not one.ok and one.at_s < view.history.end_s]
    shown = bad[:: max(1, -(-len(bad) // _MOST_CROSSES))]
    points: dict[str, list[tuple[float, float]]] = {"turned": [], "cross": []}
    for one in shown:
        css = "turned" if one.reason is OutcomeReason.SHED else "cross"
        points[css].append((across.at(one.at_s), up.at(one.latency_s)))
    marks = [
        *(mark for css, some in points.items() for mark in optional_path(crosses(some), css)),
        *optional_path(line(across, up, view.step_s, [one.worst_s for one in view.bins]), "worst"),
        *optional_path(line(across, up, view.step_s, view.medians_s), "median"),
    ]
    tips = [
        "no good answer"
        if one.worst_s is None or median_s is None
        else f"good answers took {text_format.seconds(median_s)} (median), "
        f"{text_format.seconds(one.worst_s)} at most"
        for one, median_s in zip(view.bins, view.medians_s, strict=False)
    ]
    return over_time(view, across=across, up=up, height=HEIGHT, marks=marks, tips=tips, label=label)


def admission_figure(views: Sequence[ExperimentView]) -> ReportFigure:
    """Requests in flight, admission limit, and requests stuck at bad engines."""
    across = time_scale(views[0].seconds)
    slots = [float(sum(view.history.slots.values())) for view in views]
    flights = [float(one.in_flight or 0) for view in views for one in view.bins]
    # A limit far above the load must not flatten everything else.
    room = 4.0 * max([*slots, *flights])
    ceilings = [
        one.ceiling for view in views for one in view.bins if one.ceiling is not None and one.ceiling <= room
    ]
    up = linear_scale(max([*slots, *flights, *ceilings]), HEIGHT)
    return ReportFigure(
        title="Admission limit and requests in flight",
        caption="Requests in flight and the admission limit, summed over all Envoys. The limit should fall when "
        "engines are lost: it sheds requests at once instead of letting all wait. Requests at bad engines should "
        "vanish soon after the shade begins. No line: no limit, or far above the chart.",
        keys=(
            LegendKey(css="flight", text="in flight"),
            LegendKey(css="stuck", text="at bad engines"),
            LegendKey(css="ceiling", text="admission limit"),
            LegendKey(css="slots", text="slots of the fleet"),
        ),
        charts=tuple(_admission(view, across, up) for view in views),
    )


def _admission(view: ExperimentView, across: AxisScale, up: AxisScale) -> SvgChart:
    label = f"Admission limit and requests in flight of {view.verdict.subject}"
    some = view.bins
    if all(one.in_flight is None for one in some):
        return empty_chart("No Envoy samples.", label)
    step_s, none = view.step_s, [0.0] * len(some)
    slots = number(up.at(sum(view.history.slots.values())))
    ceilings = [one.ceiling if one.ceiling is not None and one.ceiling <= up.high else None for one in some]
    marks = [
        *optional_path(bars(across, up, step_s, none, [float(one.in_flight or 0) for one in some]), "flight"),
        *optional_path(bars(across, up, step_s, none, [float(one.on_bad or 0) for one in some]), "stuck"),
        ChartPath(d=f"M{number(across.start)} {slots}H{number(across.end)}", css="slots"),
        *optional_path(line(across, up, step_s, ceilings, stairs=True), "ceiling"),
    ]
    return over_time(
        view,
        across=across,
        up=up,
        height=HEIGHT,
        marks=marks,
        tips=[_in_flight_tip(one) for one in some],
        label=label,
    )


def _in_flight_tip(one: TimeBin) -> str:
    if one.in_flight is None:
        return ""
    ceiling = "no limit" if one.ceiling is None else f"limit {one.ceiling:.0f}"
    return f"{one.in_flight} in flight, {one.on_bad or 0} at bad engines, {ceiling}"


def retries_figure(views: Sequence[ExperimentView]) -> ReportFigure:
    """Retries made by the Envoys, and retries refused by the budget."""
    across = time_scale(views[0].seconds)
    stacked = [_retries_stacked(view) for view in views]
    up = linear_scale(max((value for one in stacked for value in one[1]), default=0.0), _LOW)
    return ReportFigure(
        title="Retry budget",
        caption="Retries per second, by the Envoys' counters. Without a budget every failure is retried during a "
        "fault, which multiplies the load. Refused retries show the budget at work.",
        keys=(LegendKey(css="retried", text="retried"), LegendKey(css="refused", text="refused by the budget")),
        charts=tuple(
            _retries(view, across, up, made, both) for view, (made, both) in zip(views, stacked, strict=True)
        ),
    )


def _retries_stacked(view: ExperimentView) -> tuple[Sequence[float], Sequence[float]]:
    made = view.retries_per_s or [0.0] * view.steps
    refused = view.refused_per_s or [0.0] * view.steps
    return made, [one + other for one, other in zip(made, refused, strict=True)]


def _retries(
    view: ExperimentView, across: AxisScale, up: AxisScale, made: Sequence[float], both: Sequence[float]
) -> SvgChart:
    label = f"Retries of {view.verdict.subject}, made and refused"
    if view.retries_per_s is None and view.refused_per_s is None:
        return empty_chart("No samples of the Envoys' retry counters.", label)
    if not any(both):
        return empty_chart("No retries, made or refused.", label)
    step_s = view.step_s
    marks = [
        *optional_path(bars(across, up, step_s, [0.0] * len(made), made), "retried"),
        *optional_path(bars(across, up, step_s, made, both), "refused"),
    ]
    tips = [
        f"{one * step_s:.0f} retried, {(every - one) * step_s:.0f} refused" if every else ""
        for one, every in zip(made, both, strict=True)
    ]
    return over_time(view, across=across, up=up, height=_LOW, marks=marks, tips=tips, label=label)


def waste_figure(views: Sequence[ExperimentView]) -> ReportFigure:
    """GPU time spent on answers that no caller received."""
    across = time_scale(views[0].seconds)
    highest = max(
        (one + other for view in views for one, other in zip(*view.wasted, strict=True)),
        default=0.0,
    )
    up = linear_scale(highest, _LOW)
    return ReportFigure(
        title="Wasted GPU time",
        caption="Slots (slot seconds per second) spent on calls that failed, came too late or were abandoned, by "
        "the engines' own logs. Bars that continue inside the shade mean that requests still go to bad engines. "
        "Work destroyed by a crash is counted separately: routing cannot prevent it.",
        keys=(LegendKey(css="wasted", text="wasted"), LegendKey(css="destroyed", text="destroyed by a crash")),
        charts=tuple(_waste(view, across, up) for view in views),
    )


def _waste(view: ExperimentView, across: AxisScale, up: AxisScale) -> SvgChart:
    label = f"GPU time wasted with {view.verdict.subject}"
    if not view.history.attempts:
        return empty_chart("No call logs of the engines.", label)
    wasted, destroyed = view.wasted
    both = [one + other for one, other in zip(wasted, destroyed, strict=True)]
    if not any(both):
        return empty_chart("No GPU time wasted.", label)
    marks = [
        *optional_path(bars(across, up, view.step_s, [0.0] * len(wasted), wasted), "wasted"),
        *optional_path(bars(across, up, view.step_s, wasted, both), "destroyed"),
    ]
    tips = [
        f"{one:.1f} slots wasted, {other:.1f} destroyed by a crash" if one + other > 0.05 else ""
        for one, other in zip(wasted, destroyed, strict=True)
    ]
    return over_time(view, across=across, up=up, height=_LOW, marks=marks, tips=tips, label=label)
