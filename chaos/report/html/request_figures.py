"""Figures of what callers and engines got: goodput, latency, admission, retries and wasted GPU time. Pure."""

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
    """What arrived, and how much of it got a whole answer in time."""
    across = time_scale(views[0].seconds)
    highest = max((one.arrived / view.step_s for view in views for one in view.bins), default=0.0)
    up = linear_scale(highest, HEIGHT)
    return ReportFigure(
        title="Goodput",
        caption="Requests per second, by when they arrived; the shaded times are when something was broken. "
        "Look for how much of the bar stays good inside the shade, and how soon it is whole again after.",
        keys=(
            LegendKey(css="good", text="whole answer in time"),
            LegendKey(css="shed", text="turned away at once"),
            LegendKey(css="failed", text="failed, cut or too late"),
        ),
        charts=tuple(_goodput(view, across, up) for view in views),
    )


def _goodput(view: ExperimentView, across: AxisScale, up: AxisScale) -> SvgChart:
    told = f"Goodput of {view.verdict.subject}, second by second"
    if not view.history.requests:
        return empty_chart("No request was seen.", told)
    step_s = view.step_s
    good = [one.good / step_s for one in view.bins]
    shed = [(one.good + one.shed) / step_s for one in view.bins]
    every = [one.arrived / step_s for one in view.bins]
    marks = [
        *optional_path(bars(across, up, step_s, [0.0] * len(good), good), "good"),
        *optional_path(bars(across, up, step_s, good, shed), "shed"),
        *optional_path(bars(across, up, step_s, shed, every), "failed"),
    ]
    tips = [
        f"{one.arrived} arrived: {one.good} good, {one.shed} turned away, {one.failed} failed" for one in view.bins
    ]
    return over_time(view, across=across, up=up, height=HEIGHT, marks=marks, tips=tips, told=told)


def latency_figure(views: Sequence[ExperimentView]) -> ReportFigure:
    """How long good answers took, and how long those waited that got none."""
    across = time_scale(views[0].seconds)
    times_s = [one.latency_s for view in views for one in view.history.requests if one.latency_s > 0]
    good_s = [value for view in views for value in view.medians_s if value]
    up = log_scale(max(0.01, 0.8 * min(good_s, default=0.1)), max(times_s, default=1.0), HEIGHT - BOTTOM, TOP)
    return ReportFigure(
        title="Latency",
        caption="Seconds from arrival to the end of the answer, by when the request arrived, on a logarithmic "
        "scale. Look for lines that climb inside the shade: answers that came, but late. A cross is somebody who "
        "got no answer, as high as the time that this took, or on the edge where that is shorter than the scale: "
        "a quick no is better than a late one.",
        keys=(
            LegendKey(css="median", text="good answers, median"),
            LegendKey(css="worst", text="good answers, slowest"),
            LegendKey(css="cross", text="failed, cut or too late"),
            LegendKey(css="turned", text="turned away"),
        ),
        charts=tuple(_latency(view, across, up) for view in views),
    )


def _latency(view: ExperimentView, across: AxisScale, up: AxisScale) -> SvgChart:
    told = f"Latency of {view.verdict.subject} over time"
    if not view.history.requests:
        return empty_chart("No request was seen.", told)
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
    return over_time(view, across=across, up=up, height=HEIGHT, marks=marks, tips=tips, told=told)


def admission_figure(views: Sequence[ExperimentView]) -> ReportFigure:
    """Requests in flight, what the Envoys allowed, and what was stuck at bad engines."""
    across = time_scale(views[0].seconds)
    slots = [float(sum(view.history.slots.values())) for view in views]
    flights = [float(one.in_flight or 0) for view in views for one in view.bins]
    # A ceiling that nobody ever comes near must not press everything else to the ground.
    room = 4.0 * max([*slots, *flights])
    ceilings = [
        one.ceiling for view in views for one in view.bins if one.ceiling is not None and one.ceiling <= room
    ]
    up = linear_scale(max([*slots, *flights, *ceilings]), HEIGHT)
    return ReportFigure(
        title="Admission ceiling and requests in flight",
        caption="Requests that the Envoys had at engines, and the most they would have let in (all Envoys "
        "together). Look for a ceiling that falls when engines are lost: it turns requests away at once instead "
        "of letting everybody wait. What is in flight at bad engines should vanish soon after the shade begins. "
        "Without a line there was no ceiling, or it was far above.",
        keys=(
            LegendKey(css="flight", text="in flight"),
            LegendKey(css="stuck", text="of those, at bad engines"),
            LegendKey(css="ceiling", text="ceiling"),
            LegendKey(css="slots", text="slots of the whole fleet"),
        ),
        charts=tuple(_admission(view, across, up) for view in views),
    )


def _admission(view: ExperimentView, across: AxisScale, up: AxisScale) -> SvgChart:
    told = f"Admission ceiling and requests in flight of {view.verdict.subject}"
    some = view.bins
    if all(one.in_flight is None for one in some):
        return empty_chart("Nobody asked the Envoys.", told)
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
        tips=[_in_flight_told(one) for one in some],
        told=told,
    )


def _in_flight_told(one: TimeBin) -> str:
    if one.in_flight is None:
        return ""
    ceiling = "no ceiling" if one.ceiling is None else f"ceiling {one.ceiling:.0f}"
    return f"{one.in_flight} in flight, {one.on_bad or 0} of them at bad engines, {ceiling}"


def retries_figure(views: Sequence[ExperimentView]) -> ReportFigure:
    """What the Envoys tried again, and what their budget did not allow."""
    across = time_scale(views[0].seconds)
    stacked = [_retries_stacked(view) for view in views]
    up = linear_scale(max((value for one in stacked for value in one[1]), default=0.0), _LOW)
    return ReportFigure(
        title="Retry budget",
        caption="Retries per second, by the Envoys' counters. Look for what is retried while something is "
        "broken: without a budget every failure is tried again, and the fleet gets the load of several. Refused "
        "ones are the budget at work.",
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
    told = f"Retries of {view.verdict.subject}, made and refused"
    if view.retries_per_s is None and view.refused_per_s is None:
        return empty_chart("Nobody read the Envoys' counters of retries.", told)
    if not any(both):
        return empty_chart("The Envoys tried nothing again, and refused no retry.", told)
    step_s = view.step_s
    marks = [
        *optional_path(bars(across, up, step_s, [0.0] * len(made), made), "retried"),
        *optional_path(bars(across, up, step_s, made, both), "refused"),
    ]
    tips = [
        f"{one * step_s:.0f} retried, {(every - one) * step_s:.0f} refused" if every else ""
        for one, every in zip(made, both, strict=True)
    ]
    return over_time(view, across=across, up=up, height=_LOW, marks=marks, tips=tips, told=told)


def waste_figure(views: Sequence[ExperimentView]) -> ReportFigure:
    """GPU time whose answer nobody got."""
    across = time_scale(views[0].seconds)
    highest = max(
        (one + other for view in views for one, other in zip(*view.wasted, strict=True)),
        default=0.0,
    )
    up = linear_scale(highest, _LOW)
    return ReportFigure(
        title="Wasted GPU time",
        caption="Slots (slot seconds per second) that worked for nobody, by the engines' own books: for calls "
        "that failed, came too late or were given up. Look for bars that go on inside the shade: requests still "
        "go where they are lost. What a crash took from calls that were running is the crash's cost, not the "
        "routing's.",
        keys=(LegendKey(css="wasted", text="worked in vain"), LegendKey(css="destroyed", text="taken by a crash")),
        charts=tuple(_waste(view, across, up) for view in views),
    )


def _waste(view: ExperimentView, across: AxisScale, up: AxisScale) -> SvgChart:
    told = f"GPU time wasted with {view.verdict.subject}"
    if not view.history.attempts:
        return empty_chart("The engines kept no books.", told)
    vain, destroyed = view.wasted
    both = [one + other for one, other in zip(vain, destroyed, strict=True)]
    if not any(both):
        return empty_chart("No engine worked in vain.", told)
    marks = [
        *optional_path(bars(across, up, view.step_s, [0.0] * len(vain), vain), "wasted"),
        *optional_path(bars(across, up, view.step_s, vain, both), "destroyed"),
    ]
    tips = [
        f"{one:.1f} slots in vain, {other:.1f} taken by a crash" if one + other > 0.05 else ""
        for one, other in zip(vain, destroyed, strict=True)
    ]
    return over_time(view, across=across, up=up, height=_LOW, marks=marks, tips=tips, told=told)
