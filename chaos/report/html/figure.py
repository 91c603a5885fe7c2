"""What a figure of the page is: the same chart of every subject, with one legend and one caption. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chaos.checks import words
from chaos.report.html.drawing import BOTTOM, TOP, Box, Chart, Label, Path, Scale, Shape, axes, number
from chaos.report.html.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One line of a legend: how it looks, and what it is."""

    css: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """``charts`` has one for each subject, in their order; ``caption`` says what to look for, and in what unit."""

    title: str
    caption: str
    keys: tuple[Key, ...]
    charts: tuple[Chart, ...]


def over_time(
    view: View, *, across: Scale, up: Scale, height: float, marks: Iterable[Shape], tips: Sequence[str], told: str
) -> Chart:
    """A chart with the faults' times shaded, the marks above, and what each step comes to under the pointer."""
    bottom = height - BOTTOM
    shapes = [
        *windows(view, across, TOP, bottom),
        *axes(across, up, bottom),
        *marks,
        *(
            Box(
                x=across.at(place * view.step_s),
                y=TOP,
                width=across.at((place + 1) * view.step_s) - across.at(place * view.step_s),
                height=bottom - TOP,
                css="point",
                tip=f"{words.moment(place * view.step_s)}: {tip}",
            )
            for place, tip in enumerate(tips)
            if tip
        ),
    ]
    return Chart(height=height, shapes=tuple(shapes), told=told)


def windows(view: View, across: Scale, top: float, bottom: float) -> Iterable[Shape]:
    """The times at which something was broken."""
    for one in view.windows:
        left, right = across.at(one.start_s), across.at(one.end_s)
        yield Box(
            x=left,
            y=top,
            width=max(1.0, right - left),
            height=bottom - top,
            css="broken",
            tip=f"broken: {one.why}",
        )


def nothing(why: str, told: str) -> Chart:
    """A chart that cannot be drawn, and why."""
    return Chart(height=0.0, shapes=(), told=told, empty=why)


def path(d: str, css: str) -> Iterable[Path]:
    """It, unless there is nothing to draw."""
    if d:
        yield Path(d=d, css=css)


def crosses(points: Iterable[tuple[float, float]]) -> str:
    """A small cross on each point."""
    return "".join(f"M{number(x - 2)} {number(y - 2)}l4 4m0-4l-4 4" for x, y in points)


def lane_label(y: float, text: str, css: str = "lane") -> Label:
    """The name of a row, at the left edge."""
    return Label(x=0, y=y, text=text, css=css)
