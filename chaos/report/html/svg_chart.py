"""Charts as values: boxes, paths and labels in SVG units, and the scales that place them. Pure.

Styles are class names (``css``) of the page's style sheet, so one chart works in light mode, dark mode and print.
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
    """A rectangle; ``tip`` is its tooltip."""

    shape: Literal["box"] = "box"
    x: float
    y: float
    width: float
    height: float
    css: str
    tip: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPath:
    """An SVG path (``M 0 0 L 1 1``)."""

    shape: Literal["path"] = "path"
    d: str
    css: str
    tip: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartLabel:
    """Text anchored at ``x``: start, middle or end, by ``css``."""

    shape: Literal["label"] = "label"
    x: float
    y: float
    text: str
    css: str


Shape = ChartBox | ChartPath | ChartLabel


@dataclass(frozen=True, slots=True, kw_only=True)
class SvgChart:
    """A chart ``WIDTH`` wide. ``label`` is for screen readers, ``empty`` the reason why nothing is drawn, ``note``
    what is left out.
    """

    height: float
    shapes: tuple[Shape, ...]
    label: str
    empty: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisScale:
    """Maps values to positions. ``ticks`` are values; a logarithmic scale takes positive values only."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...] = ()
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """Position of a value, clamped to the ends."""
        held = min(max(value, self.low), self.high)
        if self.logarithmic:
            share = math.log(held / self.low) / math.log(self.high / self.low)
        else:
            share = (held - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def time_scale(seconds: float, left: float = LEFT) -> AxisScale:
    """Horizontal scale over the time of an experiment."""
    span_s = max(seconds, 1.0)
    step_s = next((one for one in _SECONDS if span_s / one <= _MOST_TICKS), span_s / _MOST_TICKS)
    ticks = tuple(step_s * place for place in range(int(span_s / step_s + 1e-9) + 1))
    return AxisScale(low=0.0, high=span_s, start=left, end=WIDTH - RIGHT, ticks=ticks)


def linear_scale(highest: float, height: float) -> AxisScale:
    """Vertical scale of a chart of this height, from 0 to slightly above ``highest``."""
    top = highest * 1.05 if highest > 0 else 1.0
    rough = top / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(one * power for one in (1.0, 2.0, 5.0, 10.0) if one * power >= rough)
    ticks = tuple(step * place for place in range(int(top / step + 1e-9) + 1))
    return AxisScale(low=0.0, high=top, start=height - BOTTOM, end=TOP, ticks=ticks)


def log_scale(lowest: float, highest: float, start: float, end: float) -> AxisScale:
    """Logarithmic scale between the nearest 1, 2 or 5 times a power of ten around both values.

    With too many ticks, only powers of ten keep one.
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
    """Ticks and values below; with ``up``, also at the left with grid lines."""
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
    """One path with all bars, each one step wide, from ``low`` to ``high``; empty bars are skipped."""
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
    """One path through the middle of each step, or along it (``stairs``); interrupted where a value is missing."""
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
            # A single value is a dot.
            parts.append("" if drawing else "h.1")
        drawing = True
    return "".join(parts)


def number(value: float) -> str:
    """Format with at most one decimal."""
    return f"{round(value, 1):.1f}".removesuffix(".0")
