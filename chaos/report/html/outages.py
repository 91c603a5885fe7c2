"""The figure of each outage as a chain: detect, decide, push, ACK, last request; then back again. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

from chaos.checks import words
from chaos.measures.timeline import STEPS, Moments, by_outage, moments
from chaos.report.html.drawing import RIGHT, WIDTH, Box, Chart, Label, Path, Scale, Shape, axes, log_scale, number
from chaos.report.html.figure import Figure, Key, lane_label, nothing
from chaos.report.html.view import View

MOST_OUTAGES: Final = 6
_LEFT: Final = 112.0
_LANE: Final = 17.0
_GAP: Final = 10.0
_BOTTOM: Final = 24.0
_SHORTEST_S: Final = 0.01
_STARTS: Final = frozenset({"broke", "healed"})
_BACK: Final = frozenset({"readmitted", "traffic back"})
_RULED: Final = frozenset({"detected", "decided", "pushed", "ACKed by all", "readmitted"})
"""Steps that only a control plane and its agents take."""
_CSS: Final = {
    "detected": "detect",
    "decided": "decide",
    "pushed": "pushing",
    "ACKed by all": "ack",
    "last request": "last",
    "readmitted": "decide",
    "traffic back": "ack",
}


def chain(views: Sequence[View]) -> Figure:
    """Of every outage that broke engines, how long each step took; of several engines the last counts."""
    told = [by_outage(moments(view.history)) for view in views]
    after_s = [after for some in told for one in some for _, after in _steps(one) if after is not None]
    across = log_scale(_SHORTEST_S, max([1.0, *after_s]), _LEFT, WIDTH - RIGHT - 56)
    return Figure(
        title="From the break to the last request, and back",
        caption="Seconds after an engine broke, and, with a +, after it was healed, on a logarithmic scale. Of "
        "several engines the last one counts. Look for the gap between two steps that is the longest: that step "
        "is what to make faster. The last request is the last one before the engine was left alone; strays came "
        "later, on trial for instance.",
        keys=(
            Key(css="detect", text="agent detects"),
            Key(css="decide", text="control plane decides"),
            Key(css="pushing", text="pushes"),
            Key(css="ack", text="every Envoy ACKs / traffic is back"),
            Key(css="last", text="last request"),
        ),
        charts=tuple(_chain(view, some, across) for view, some in zip(views, told, strict=True)),
    )


def _chain(view: View, some: Sequence[Moments], across: Scale) -> Chart:
    told = f"Steps of every outage with {view.verdict.subject}"
    if not some:
        return nothing("Nothing broke an engine.", told)
    shapes: list[Shape] = []
    y = 0.0
    for one in some[:MOST_OUTAGES]:
        lanes = [step for step in _steps(one) if view.case.ruled or step[0] not in _RULED]
        shapes.append(Label(x=0, y=y + 13, text=_title(one), css="lane heading"))
        y += _LANE
        for title, after in lanes:
            shapes += _lane(across, y, title, after, one.strays)
            y += _LANE
        y += _GAP
    hidden = len(some) - min(len(some), MOST_OUTAGES)
    grid = [Path(d=f"M{number(across.at(tick))} {_LANE:g}V{number(y)}", css="grid") for tick in across.ticks]
    notes = [
        "No control plane: nobody but the Envoys themselves can leave an engine alone."
        if not view.case.ruled
        else "",
        f"{words.count(hidden, 'more outage')} in the table below." if hidden else "",
    ]
    return Chart(
        height=y + _BOTTOM,
        shapes=(*grid, *axes(across, None, y), *shapes),
        told=told,
        note=" ".join(one for one in notes if one),
    )


def _lane(across: Scale, y: float, title: str, after: float | None, strays: int) -> Iterable[Shape]:
    back = title in _BACK
    yield lane_label(y + 12, f"+ {title}" if back else title)
    if after is None:
        never = title == "last request"
        text, css = ("not left alone", "never") if never else ("not seen", "unseen")
        yield Label(x=across.start + 4, y=y + 12, text=text, css=css)
        return
    x = across.at(max(_SHORTEST_S, after))
    said = words.seconds(after)
    if title == "last request" and strays:
        said += f", {words.count(strays, 'stray')}"
    yield Path(d=f"M{number(across.start)} {number(y + 8)}H{number(x)}", css="stem")
    yield Box(
        x=x - 3.5,
        y=y + 3,
        width=7,
        height=_LANE - 6,
        css=_CSS[title],
        tip=f"{title}: {said} after it {'was healed' if back else 'broke'}",
    )
    yield Label(x=x + 8, y=y + 12, text=said, css="value")


def _steps(one: Moments) -> list[tuple[str, float | None]]:
    """Each step, and how long after the break or the healing it was done."""
    found: list[tuple[str, float | None]] = []
    since_s: float | None = None
    for title, name in STEPS:
        at_s: float | None = getattr(one, name)
        if title in _STARTS:
            since_s = at_s
        elif since_s is not None:
            found.append((title, None if at_s is None else max(0.0, at_s - since_s)))
    return found


def _title(one: Moments) -> str:
    return f"{one.kind} of {words.names(one.engine.split(', '))}, at {words.moment(one.broke_s)}"
