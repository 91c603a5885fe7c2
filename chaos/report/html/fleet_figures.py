"""Figures of the engines: load over time, ejections and decisions. Pure."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from chaos.checks import text_format
from chaos.measures.ejection_spans import EjectionSpan, control_plane_ejections
from chaos.report.html.experiment_view import ExperimentView
from chaos.report.html.figure import LegendKey, ReportFigure, empty_chart, fault_windows, lane_label
from chaos.report.html.svg_chart import (
    TOP,
    AxisScale,
    ChartBox,
    ChartPath,
    Shape,
    SvgChart,
    axes,
    number,
    time_scale,
)

MOST_ENGINES: Final = 32
ROW: Final = 18.0
FOOT: Final = 24.0
_LEVELS: Final = ((0.0, "empty"), (0.25, "l1"), (0.5, "l2"), (0.75, "l3"), (1.0, "l4"), (1.5, "l5"))
_MOST_DECISIONS: Final = 60


def fleet_map(views: Sequence[ExperimentView]) -> ReportFigure:
    """Load, faults and ejections of each engine over time."""
    across = time_scale(views[0].seconds)
    return ReportFigure(
        title="Fleet map",
        caption="One row per engine. Darker means more requests in flight per slot, by the Envoys; the darkest "
        "have more requests than slots. Look for rows with a red edge (broken) that stay full: they still get "
        "requests. Hatched: ejected by the control plane. Dotted edge: ejected by an Envoy itself.",
        keys=(
            LegendKey(css="empty", text="idle"),
            LegendKey(css="l2", text="half full"),
            LegendKey(css="l4", text="full"),
            LegendKey(css="l6", text="over 1.5 requests per slot"),
            LegendKey(css="faulty", text="broken"),
            LegendKey(css="out", text="ejected by the control plane"),
            LegendKey(css="own", text="ejected by an Envoy itself"),
        ),
        charts=tuple(_fleet_map(view, across) for view in views),
    )


def _fleet_map(view: ExperimentView, across: AxisScale) -> SvgChart:
    label = f"Fleet map of {view.verdict.subject}: load and state of each engine over time"
    engines = shown_engines(view)
    if not engines or not view.history.samples:
        return empty_chart("No Envoy samples.", label)
    height = TOP + ROW * len(engines) + FOOT
    shapes: list[Shape] = [*axes(across, None, height - FOOT + 2)]
    for place, engine in enumerate(engines):
        shapes += _map_row(view, across, engine, TOP + ROW * place)
    return SvgChart(height=height, shapes=tuple(shapes), label=label, note=omitted_note(view, engines))


def _map_row(view: ExperimentView, across: AxisScale, engine: str, top: float) -> Iterable[Shape]:
    yield lane_label(top + 12, engine_label(view, engine))
    inside = ROW - 3
    slots = view.history.slots[engine]
    place = 0
    for css, group in groupby(_level(value, slots) for value in view.in_flight[engine]):
        first, place = place, place + len(list(group))
        if css:
            left, right = across.at(first * view.step_s), across.at(place * view.step_s)
            values = [value or 0 for value in view.in_flight[engine][first:place]]
            range_text = f"{min(values)}" if min(values) == max(values) else f"{min(values)} to {max(values)}"
            yield ChartBox(
                x=left,
                y=top,
                width=right - left,
                height=inside,
                css=css,
                tip=(
                    f"{engine}, {text_format.moment(first * view.step_s)} to "
                    f"{text_format.moment(place * view.step_s)}: "
                    f"{range_text} in flight, {slots} slots"
                ),
            )
    for one in control_plane_ejections(view.history, engine, view.history.end_s):
        yield _span(across, one, y=top, height=inside, css="out", who=engine)
    for proxy_spans in view.ejected.get(engine, {}).values():
        for one in proxy_spans:
            yield _span(across, one, y=top, height=3.0, css="own", who=engine)
    for one in impaired_engines(view, engine):
        yield _span(across, one, y=top + inside - 3.0, height=3.0, css="faulty", who=engine)


def ejection_map(views: Sequence[ExperimentView]) -> ReportFigure:
    """Faults, ejections, decisions in the ledger, and configuration pushes."""
    across = time_scale(views[0].seconds)
    return ReportFigure(
        title="Ejections and decisions",
        caption="Engines that were broken or ejected at any time. Compare the ejection bar with the fault bar "
        "above it: how late it starts and ends. A bar without a fault is a healthy engine ejected. Diamonds are "
        "entries of the control plane's ledger (hover for the evidence). The last row shows pushes and NACKs.",
        keys=(
            LegendKey(css="faulty", text="engine broken"),
            LegendKey(css="nearby", text="agent, Envoy or control plane broken"),
            LegendKey(css="held", text="ejected by the control plane"),
            LegendKey(css="own", text="ejected by an Envoy itself"),
            LegendKey(css="decision", text="decision"),
            LegendKey(css="nack", text="refused configuration (NACK)"),
        ),
        charts=tuple(_ejections(view, across) for view in views),
    )


def _ejections(view: ExperimentView, across: AxisScale) -> SvgChart:
    label = f"Ejections and decisions of {view.verdict.subject}"
    history = view.history
    parts = dict.fromkeys(target for one in history.outages for target in one.targets if _nearby(view, target))
    touched = [
        *(engine for engine in history.slots if _touched(view, engine) or engine in parts),
        *(part for part in parts if part not in history.slots),
    ]
    engines = touched[:MOST_ENGINES]
    if not engines and not history.pushed:
        return empty_chart("Nothing was broken or ejected.", label)
    row = 22.0
    rows = len(engines) + bool(history.pushed)
    bottom = TOP + row * rows
    shapes: list[Shape] = [*fault_windows(view, across, TOP, bottom), *axes(across, None, bottom + 2)]
    for place, engine in enumerate(engines):
        top = TOP + row * place
        shapes.append(lane_label(top + 13, engine_label(view, engine)))
        shapes += [_span(across, one, y=top, height=5, css="nearby", who=engine) for one in _nearby(view, engine)]
        shapes += [
            _span(across, one, y=top, height=5, css="faulty", who=engine) for one in impaired_engines(view, engine)
        ]
        shapes += [
            _span(across, one, y=top + 6, height=6, css="held", who=engine)
            for one in control_plane_ejections(history, engine, history.end_s)
        ]
        by_proxy = view.ejected.get(engine, {})
        for lane, spans in enumerate(by_proxy.values()):
            thin = 6.0 / len(by_proxy)
            shapes += [
                _span(across, one, y=top + 13 + lane * thin, height=max(1.0, thin - 0.5), css="own", who=engine)
                for one in spans
            ]
        shapes += _decisions(view, across, engine, top + 9)
    if history.pushed:
        shapes += _pushes(view, across, TOP + row * len(engines))
    hidden = len(touched) - len(engines)
    note = f"{text_format.count(hidden, 'more row')} not shown." if hidden else ""
    return SvgChart(height=bottom + FOOT, shapes=tuple(shapes), label=label, note=note)


def _decisions(view: ExperimentView, across: AxisScale, engine: str, y: float) -> Iterable[Shape]:
    some = [one for one in view.history.decided if one.engine == engine and 0 <= one.at_s <= view.seconds]
    for one in some[:_MOST_DECISIONS]:
        x = across.at(one.at_s)
        yield ChartPath(
            d=f"M{number(x)} {number(y - 4)}l3.5 4l-3.5 4l-3.5-4z",
            css="decision",
            tip=(
                f"{engine}, {text_format.moment(one.at_s)}, {one.kind}: {one.before} -> {one.after}; "
                f"{one.evidence}"
            ),
        )


def _pushes(view: ExperimentView, across: AxisScale, top: float) -> Iterable[Shape]:
    yield lane_label(top + 14, "pushes")
    places = sorted(
        {round(across.at(one.at_s), 0) for one in view.history.pushed if 0 <= one.at_s <= view.seconds}
    )
    yield ChartPath(
        d="".join(f"M{number(x)} {number(top + 5)}v10" for x in places),
        css="push",
        tip=f"{text_format.count(len(view.history.pushed), 'push', 'pushes')} in total",
    )
    for one in [one for one in view.history.answered if one.error][:_MOST_DECISIONS]:
        x = across.at(one.at_s)
        yield ChartPath(
            d=f"M{number(x - 4)} {number(top + 6)}l8 8m0-8l-8 8",
            css="nack",
            tip=f"{text_format.moment(one.at_s)}: {one.proxy} refused {one.type}: {one.error}",
        )


def _span(across: AxisScale, span: EjectionSpan, *, y: float, height: float, css: str, who: str) -> ChartBox:
    """A bar over a time span; the tooltip gives target and reason."""
    left = across.at(span.start_s)
    tip = f"{who}, {text_format.moment(span.start_s)} to {text_format.moment(span.end_s)}: {span.why}"
    return ChartBox(x=left, y=y, width=max(1.5, across.at(span.end_s) - left), height=height, css=css, tip=tip)


def impaired_engines(view: ExperimentView, engine: str) -> Sequence[EjectionSpan]:
    """Spans in which the engine was impaired."""
    return [
        EjectionSpan(
            start_s=one.start_s,
            end_s=min(one.end_s, view.history.end_s),
            why=f"{one.kind} ({one.outage})",
        )
        for one in view.case.impairments
        if one.engine == engine
    ]


def _nearby(view: ExperimentView, target: str) -> Sequence[EjectionSpan]:
    """Outages of the target other than the engine itself: its agent, an Envoy, the control plane."""
    own = {one.outage for one in view.case.impairments if one.engine == target}
    return [
        EjectionSpan(
            start_s=one.start_s,
            end_s=view.history.end_s if one.end_s is None else min(one.end_s, view.history.end_s),
            why=f"{one.kind} ({one.id})",
        )
        for one in view.history.outages
        if target in one.targets and one.id not in own
    ]


def _touched(view: ExperimentView, engine: str) -> bool:
    return bool(
        impaired_engines(view, engine)
        or view.ejected.get(engine)
        or control_plane_ejections(view.history, engine, view.history.end_s)
    )


def shown_engines(view: ExperimentView) -> Sequence[str]:
    """All engines, at most ``MOST_ENGINES``: affected ones first."""
    engines = list(view.history.slots)
    if len(engines) <= MOST_ENGINES:
        return engines
    first = sorted(engines, key=lambda one: not _touched(view, one))[:MOST_ENGINES]
    return [one for one in engines if one in set(first)]


def omitted_note(view: ExperimentView, drawn: Sequence[str]) -> str:
    """Number of engines not drawn; empty if all are."""
    hidden = len(view.history.slots) - len(drawn)
    return f"{text_format.count(hidden, 'more engine')} not shown." if hidden else ""


def engine_label(view: ExperimentView, engine: str) -> str:
    """Engine name, with its zone if there are several."""
    zones = {one.name: one.zone for one in view.history.began.engines}
    return f"{engine} {zones[engine]}" if engine in zones and len(set(zones.values())) > 1 else engine


def _level(in_flight: int | None, slots: int) -> str:
    if in_flight is None:
        return ""
    return next((css for limit, css in _LEVELS if in_flight <= limit * slots), "l6")
