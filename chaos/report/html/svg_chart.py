"""Charts as values: boxes, lines and words in the units of one SVG picture, and the scales that place them. Pure.

Looks are names (``css``) that the page's style sheet knows, so that one picture does for light, dark and paper.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

WIDTH: Final = 480.0
LEFT: Final = 48.0
RIGHT: Final = 8.0
TOP: Final = 8.0
BOTTOM: Final = 20.0
_MOST_TICKS: Final = 8
_SECONDS: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartBox:
    """A rectangle; ``tip`` is shown to who points at it."""

    shape: Literal["box"] = "box"
    x: float
    y: float
    width: float
    height: float
    css: str
    tip: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPath:
    """Anything else that is drawn, as SVG says it (``M 0 0 L 1 1``)."""

    shape: Literal["path"] = "path"
    d: str
    css: str
    tip: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartLabel:
    """Words that start, end or have their middle at ``x``, as ``css`` says."""

    shape: Literal["label"] = "label"
    x: float
    y: float
    text: str
    css: str


Shape = ChartBox | ChartPath | ChartLabel


@dataclass(frozen=True, slots=True, kw_only=True)
class SvgChart:
    """A picture ``WIDTH`` wide. ``told`` is what it is of, for who cannot see it; ``empty`` why nothing is
    drawn, and ``note`` what is left out.
    """

    height: float
    shapes: tuple[Shape, ...]
    told: str
    empty: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisScale:
    """From values to places. ``ticks`` are values; a logarithmic one has only positive values."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...] = ()
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """The place of a value; values beyond an end are put there."""
        held = min(max(value, self.low), self.high)
        if self.logarithmic:
            share = math.log(held / self.low) / math.log(self.high / self.low)
        else:
            share = (held - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def time_scale(seconds: float, left: float = LEFT) -> AxisScale:
    """From left to right over an experiment."""
    span_s = max(seconds, 1.0)
    step_s = next((one for one in _SECONDS if span_s / one <= _MOST_TICKS), span_s / _MOST_TICKS)
    ticks = tuple(step_s * place for place in range(int(span_s / step_s + 1e-9) + 1))
    return AxisScale(low=0.0, high=span_s, start=left, end=WIDTH - RIGHT, ticks=ticks)


def linear_scale(highest: float, height: float) -> AxisScale:
    """From the bottom to the top of a chart of this height, 0 to a little more than ``highest``."""
    top = highest * 1.05 if highest > 0 else 1.0
    rough = top / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(one * power for one in (1.0, 2.0, 5.0, 10.0) if one * power >= rough)
    ticks = tuple(step * place for place in range(int(top / step + 1e-9) + 1))
    return AxisScale(low=0.0, high=top, start=height - BOTTOM, end=TOP, ticks=ticks)


def log_scale(lowest: float, highest: float, start: float, end: float) -> AxisScale:
    """From the 1, 2 or 5 of a power of ten below the one value to that above the other.

    Where those are too many, there are ticks at powers of ten only.
    """
    powers = range(math.floor(math.log10(lowest)), math.ceil(math.log10(highest)) + 1)
    around = [round(one * 10.0**power, 9) for power in powers for one in (1.0, 2.0, 5.0)]
    low = max((one for one in around if one <= lowest), default=around[0])
    high = min(one for one in around if one >= highest and one > low)
    ticks = tuple(one for one in around if low <= one <= high)
    if len(ticks) > _MOST_TICKS - 2:
        ticks = tuple(one for power in powers if low <= (one := round(10.0**power, 9)) <= high)
    return AxisScale(low=low, high=high, start=start, end=end, ticks=ticks, logarithmic=True)


def axes(across: AxisScale, up: AxisScale | None, bottom: float, unit: str = "s") -> Iterable[Shape]:
    """Ticks with their values below, and, where there is an ``up``, to the left with lines across."""
    for tick in across.ticks:
        x = across.at(tick)
        yield ChartPath(d=f"M{number(x)} {number(bottom)}v4", css="axis")
        yield ChartLabel(x=x, y=bottom + 15, text=f"{tick:g}", css="middle")
    yield ChartPath(d=f"M{number(across.start)} {number(bottom)}H{number(across.end)}", css="axis")
    yield ChartLabel(x=0, y=bottom + 15, text=unit, css="unit")
    if up is None:
        return
    for tick in up.ticks:
        y = up.at(tick)
        yield ChartPath(d=f"M{number(across.start)} {number(y)}H{number(across.end)}", css="grid")
        yield ChartLabel(x=across.start - 5, y=y + 4, text=f"{tick:g}", css="end")


def bars(across: AxisScale, up: AxisScale, step: float, low: Sequence[float], high: Sequence[float]) -> str:
    """One path of all bars, each a step wide, from ``low`` to ``high``; none where that is nothing."""
    parts = []
    for place, (below, above) in enumerate(zip(low, high, strict=True)):
        if above > below:
            left, right = across.at(place * step), across.at((place + 1) * step)
            parts.append(
                f"M{number(left)} {number(up.at(below))}V{number(up.at(above))}"
                f"H{number(max(left + 0.5, right - 0.6))}V{number(up.at(below))}z"
            )
    return "".join(parts)


def line(
    across: AxisScale, up: AxisScale, step: float, values: Sequence[float | None], *, stairs: bool = False
) -> str:
    """One path through the middle of every step, or along it; broken where there is no value."""
    parts, drawing = [], False
    for place, value in enumerate(values):
        if value is None:
            drawing = False
            continue
        y = number(up.at(value))
        if stairs:
            left, right = number(across.at(place * step)), number(across.at((place + 1) * step))
            parts.append(f"{'L' if drawing else 'M'}{left} {y}H{right}")
        else:
            parts.append(f"{'L' if drawing else 'M'}{number(across.at((place + 0.5) * step))} {y}")
            # A value that stands alone is a dot.
            parts.append("" if drawing else "h.1")
        drawing = True
    return "".join(parts)


def number(value: float) -> str:
    """With one digit at most, as short as it can be said."""
    return f"{round(value, 1):.1f}".removesuffix(".0")
