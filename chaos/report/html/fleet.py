"""Figures of the engines: the fleet over time, and who was out by whose will. Pure."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from chaos.checks import words
from chaos.measures.standing import Span, out_by_ledger
from chaos.report.html.drawing import (
    TOP,
    Box,
    Chart,
    Path,
    Scale,
    Shape,
    axes,
    number,
    time_scale,
)
from chaos.report.html.figure import Figure, Key, lane_label, nothing, windows
from chaos.report.html.view import View

MOST_ENGINES: Final = 32
ROW: Final = 18.0
FOOT: Final = 24.0
_LEVELS: Final = ((0.0, "empty"), (0.25, "l1"), (0.5, "l2"), (0.75, "l3"), (1.0, "l4"), (1.5, "l5"))
_MOST_DECISIONS: Final = 60


def fleet_map(views: Sequence[View]) -> Figure:
    """Engine by time: how full each is, and whether it is broken, out or ejected."""
    across = time_scale(views[0].seconds)
    return Figure(
        title="Fleet map",
        caption="One row for each engine. The more a field stands out, the more of the engine's slots are taken "
        "(requests in flight per slot, by the Envoys); those that stand out most have more requests than slots. "
        "Look for rows with the red edge, which are broken, that stay full: requests still go there. Hatched is "
        "where the control plane, a dotted edge where an Envoy of itself keeps an engine out.",
        keys=(
            Key(css="empty", text="idle"),
            Key(css="l2", text="half full"),
            Key(css="l4", text="full"),
            Key(css="l6", text="more than 1.5 for each slot"),
            Key(css="ill", text="broken"),
            Key(css="out", text="out by the control plane"),
            Key(css="own", text="ejected by an Envoy itself"),
        ),
        charts=tuple(_fleet_map(view, across) for view in views),
    )


def _fleet_map(view: View, across: Scale) -> Chart:
    told = f"Fleet map of {view.verdict.subject}: load and state of every engine over time"
    engines = shown(view)
    if not engines or not view.history.samples:
        return nothing("Nobody asked the Envoys.", told)
    height = TOP + ROW * len(engines) + FOOT
    shapes: list[Shape] = [*axes(across, None, height - FOOT + 2)]
    for place, engine in enumerate(engines):
        shapes += _map_row(view, across, engine, TOP + ROW * place)
    return Chart(height=height, shapes=tuple(shapes), told=told, note=left_out(view, engines))


def _map_row(view: View, across: Scale, engine: str, top: float) -> Iterable[Shape]:
    yield lane_label(top + 12, named(view, engine))
    inside = ROW - 3
    slots = view.history.slots[engine]
    place = 0
    for css, group in groupby(_level(value, slots) for value in view.in_flight[engine]):
        first, place = place, place + len(list(group))
        if css:
            left, right = across.at(first * view.step_s), across.at(place * view.step_s)
            values = [value or 0 for value in view.in_flight[engine][first:place]]
            told = f"{min(values)}" if min(values) == max(values) else f"{min(values)} to {max(values)}"
            yield Box(
                x=left,
                y=top,
                width=right - left,
                height=inside,
                css=css,
                tip=f"{engine}, {words.moment(first * view.step_s)} to {words.moment(place * view.step_s)}: "
                f"{told} in flight at {slots} slots",
            )
    for one in out_by_ledger(view.history, engine, view.history.end_s):
        yield _span(across, one, y=top, height=inside, css="out", who=engine)
    for proxy_spans in view.ejected.get(engine, {}).values():
        for one in proxy_spans:
            yield _span(across, one, y=top, height=3.0, css="own", who=engine)
    for one in troubled(view, engine):
        yield _span(across, one, y=top + inside - 3.0, height=3.0, css="ill", who=engine)


def ejections(views: Sequence[View]) -> Figure:
    """Who was broken, and who was out by whose will, with every line of the ledger and every push."""
    across = time_scale(views[0].seconds)
    return Figure(
        title="Ejections and decisions",
        caption="Engines that were broken or out at any time. Look for how far the second bar begins after the "
        "first, how soon it ends after it, and for bars without a broken one above them: good engines that were "
        "left out. Marks are lines of the control plane's ledger (point at them for the evidence); the last row "
        "has its pushes, and what an Envoy rejected.",
        keys=(
            Key(css="ill", text="engine broken"),
            Key(css="beside", text="agent, Envoy or control plane broken"),
            Key(css="held", text="out by the control plane"),
            Key(css="own", text="ejected by an Envoy itself"),
            Key(css="said", text="decision"),
            Key(css="nack", text="rejected configuration"),
        ),
        charts=tuple(_ejections(view, across) for view in views),
    )


def _ejections(view: View, across: Scale) -> Chart:
    told = f"Ejections and decisions of {view.verdict.subject}"
    history = view.history
    parts = dict.fromkeys(target for one in history.outages for target in one.targets if _beside(view, target))
    touched = [
        *(engine for engine in history.slots if _touched(view, engine) or engine in parts),
        *(part for part in parts if part not in history.slots),
    ]
    engines = touched[:MOST_ENGINES]
    if not engines and not history.pushed:
        return nothing("Nothing was broken or out.", told)
    row = 22.0
    rows = len(engines) + bool(history.pushed)
    bottom = TOP + row * rows
    shapes: list[Shape] = [*windows(view, across, TOP, bottom), *axes(across, None, bottom + 2)]
    for place, engine in enumerate(engines):
        top = TOP + row * place
        shapes.append(lane_label(top + 13, named(view, engine)))
        shapes += [_span(across, one, y=top, height=5, css="beside", who=engine) for one in _beside(view, engine)]
        shapes += [_span(across, one, y=top, height=5, css="ill", who=engine) for one in troubled(view, engine)]
        shapes += [
            _span(across, one, y=top + 6, height=6, css="held", who=engine)
            for one in out_by_ledger(history, engine, history.end_s)
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
    note = f"{words.count(hidden, 'more row')} not shown." if hidden else ""
    return Chart(height=bottom + FOOT, shapes=tuple(shapes), told=told, note=note)


def _decisions(view: View, across: Scale, engine: str, y: float) -> Iterable[Shape]:
    some = [one for one in view.history.decided if one.engine == engine and 0 <= one.at_s <= view.seconds]
    for one in some[:_MOST_DECISIONS]:
        x = across.at(one.at_s)
        yield Path(
            d=f"M{number(x)} {number(y - 4)}l3.5 4l-3.5 4l-3.5-4z",
            css="said",
            tip=f"{engine}, {words.moment(one.at_s)}, {one.kind}: {one.before} -> {one.after}; {one.evidence}",
        )


def _pushes(view: View, across: Scale, top: float) -> Iterable[Shape]:
    yield lane_label(top + 14, "pushes")
    places = sorted(
        {round(across.at(one.at_s), 0) for one in view.history.pushed if 0 <= one.at_s <= view.seconds}
    )
    yield Path(
        d="".join(f"M{number(x)} {number(top + 5)}v10" for x in places),
        css="push",
        tip=f"{words.count(len(view.history.pushed), 'push', 'pushes')} in all",
    )
    for one in [one for one in view.history.answered if one.error][:_MOST_DECISIONS]:
        x = across.at(one.at_s)
        yield Path(
            d=f"M{number(x - 4)} {number(top + 6)}l8 8m0-8l-8 8",
            css="nack",
            tip=f"{words.moment(one.at_s)}: {one.proxy} rejected {one.type}: {one.error}",
        )


def _span(across: Scale, span: Span, *, y: float, height: float, css: str, who: str) -> Box:
    """A bar over its time; its tip says who, and why."""
    left = across.at(span.start_s)
    tip = f"{who}, {words.moment(span.start_s)} to {words.moment(span.end_s)}: {span.why}"
    return Box(x=left, y=y, width=max(1.5, across.at(span.end_s) - left), height=height, css=css, tip=tip)


def troubled(view: View, engine: str) -> Sequence[Span]:
    """When something was wrong with it."""
    return [
        Span(
            start_s=one.start_s,
            end_s=min(one.end_s, view.history.end_s),
            why=f"{one.kind} ({one.outage})",
        )
        for one in view.case.troubles
        if one.engine == engine
    ]


def _beside(view: View, target: str) -> Sequence[Span]:
    """When something was broken there that is not the engine itself: its agent, an Envoy, the control plane."""
    ill = {one.outage for one in view.case.troubles if one.engine == target}
    return [
        Span(
            start_s=one.start_s,
            end_s=view.history.end_s if one.end_s is None else min(one.end_s, view.history.end_s),
            why=f"{one.kind} ({one.id})",
        )
        for one in view.history.outages
        if target in one.targets and one.id not in ill
    ]


def _touched(view: View, engine: str) -> bool:
    return bool(
        troubled(view, engine)
        or view.ejected.get(engine)
        or out_by_ledger(view.history, engine, view.history.end_s)
    )


def shown(view: View) -> Sequence[str]:
    """All engines; of very many those to which something happened, and as many others as there is room for."""
    engines = list(view.history.slots)
    if len(engines) <= MOST_ENGINES:
        return engines
    first = sorted(engines, key=lambda one: not _touched(view, one))[:MOST_ENGINES]
    return [one for one in engines if one in set(first)]


def left_out(view: View, drawn: Sequence[str]) -> str:
    """How many engines are not among these; nothing where all are."""
    hidden = len(view.history.slots) - len(drawn)
    return f"{words.count(hidden, 'more engine')} not shown." if hidden else ""


def named(view: View, engine: str) -> str:
    """An engine with its zone, where there are several; other names as they are."""
    zones = {one.name: one.zone for one in view.history.began.engines}
    return f"{engine} {zones[engine]}" if engine in zones and len(set(zones.values())) > 1 else engine


def _level(in_flight: int | None, slots: int) -> str:
    if in_flight is None:
        return ""
    return next((css for limit, css in _LEVELS if in_flight <= limit * slots), "l6")
