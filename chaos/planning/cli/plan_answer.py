"""Output of ``switchgear plan``: tables and sentences, JSON or YAML, a plot."""

import base64
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import click

from chaos.planning.error import PlanError
from chaos.planning.objective_outlook import ObjectiveOutlook
from command_line.output_format import DATA, OutputForm, as_data
from command_line.table import Role, TableColumn, coloured, show_table


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerGrid:
    """A table: first column left-aligned, the others right-aligned."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer:
    """``data`` is what ``-o json`` prints; ``yes`` decides the exit code; ``notes`` follow the tables.

    ``draw`` plots on matplotlib's axes for ``--plot``.
    """

    question: str
    data: Mapping[str, Any]
    grids: tuple[AnswerGrid, ...]
    notes: tuple[str, ...]
    yes: bool
    draw: Callable[[Any], None] = field(repr=False)


def objectives_grid(columns: Mapping[str, Sequence[ObjectiveOutlook]]) -> tuple[AnswerGrid, ...]:
    """Expected latency or share of good requests by objective, a column for each state; empty without any."""
    if not any(columns.values()):
        return ()
    by_objective = zip(*columns.values(), strict=True)
    return (
        AnswerGrid(
            title="Objectives",
            columns=("objective", "target", *columns),
            rows=tuple(
                (
                    states[0].name,
                    target(1 - states[0].target)
                    + (f" within {seconds(states[0].limit_s)}" if states[0].limit_s else ""),
                    *map(_expected, states),
                )
                for states in by_objective
            ),
        ),
    )


def objectives_notes(columns: Mapping[str, Sequence[ObjectiveOutlook]]) -> Iterable[str]:
    """How the expected values were computed; which are unknown."""
    found = [one for states in columns.values() for one in states]
    if not found:
        return
    yield (
        "Objectives: the expected latency is the measured percentile, scaled by the service time, plus the change "
        "of the wait at that percentile (an upper estimate). Good requests are those not refused."
    )
    unknown = sorted({one.name for one in found if one.kept is None})
    if unknown:
        yield f"Not judged, as no latency was measured: {', '.join(unknown)}."


def _expected(one: ObjectiveOutlook) -> str:
    if one.kept is None:
        return "-"
    value = percent(one.good) if one.good is not None else seconds(one.expected_s or 0.0)
    return value if one.kept else f"{value}: missed"


def print_answer(answer: PlanAnswer, *, output: OutputForm, plot: Path | None) -> int:
    """Print and plot the answer; return the exit code."""
    if plot is not None:
        _draw(answer, plot)
    if output in DATA:
        click.echo(as_data(_finite(answer.data), output), nl=False)
    else:
        for grid in answer.grids:
            click.echo(click.style(f"{grid.title}:", bold=coloured() or None))
            columns = [
                TableColumn(title=title, role=Role.FIGURE if number else Role.IDENTITY)
                for number, title in enumerate(grid.columns)
            ]
            show_table(columns, grid.rows)
            click.echo()
        for sentence in answer.notes:
            click.echo(f"- {sentence}")
    return 0 if answer.yes else 1


def plot_path(path: Path | None) -> Path | None:
    """Return the path; raise ``PlanError`` before any computation if the plot cannot be written."""
    if path is None:
        return None
    if path.suffix not in (".png", ".svg", ".html"):
        raise PlanError(f"--plot {path}: the file name must end in .png, .svg or .html")
    if not path.absolute().parent.is_dir():
        raise PlanError(f"--plot {path}: folder {path.absolute().parent} does not exist")
    return path


def _draw(answer: PlanAnswer, path: Path) -> None:
    # Imported here: it takes a second, and most answers need no plot.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(9, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    answer.draw(axes)
    axes.grid(visible=True, alpha=0.3)
    try:
        if path.suffix == ".html":
            picture = io.BytesIO()
            figure.savefig(picture, format="png", dpi=140)
            path.write_text(_page(answer, picture.getvalue()), encoding="utf-8")
        else:
            figure.savefig(path, dpi=140)
    except OSError as error:
        raise PlanError(f"--plot {path}: {error.strerror or error}") from error


def _page(answer: PlanAnswer, picture: bytes) -> str:
    """Render a self-contained HTML page."""
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f"<title>{escape(answer.question)}</title>",
            "<style>body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem}"
            "table{border-collapse:collapse;margin:1rem 0}caption{text-align:left;font-weight:600}"
            "td,th{border:1px solid #8886;padding:.2rem .6rem;text-align:right}"
            "td:first-child,th:first-child{text-align:left}img{max-width:100%}</style></head><body>",
            f"<h1>{escape(answer.question)}</h1>",
            *_tables(answer.grids),
            f'<img alt="Plot of the tables above" src="data:image/png;base64,'
            f'{base64.b64encode(picture).decode()}">',
            "<ul>",
            *(f"<li>{escape(one)}</li>" for one in answer.notes),
            "</ul></body></html>\n",
        )
    )


def _tables(grids: Iterable[AnswerGrid]) -> Iterable[str]:
    for grid in grids:
        yield f"<table><caption>{escape(grid.title)}</caption>"
        yield f"<tr>{''.join(f'<th>{escape(one)}</th>' for one in grid.columns)}</tr>"
        for row in grid.rows:
            yield f"<tr>{''.join(f'<td>{escape(one)}</td>' for one in row)}</tr>"
        yield "</table>"


def _finite(value: Any) -> Any:
    """Replace infinities by null: JSON has no infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def percent(share: float) -> str:
    """Format a share, with more digits close to 100 %: ``99.9821 %``, ``12.5 %``, ``0.0062 %``."""
    missing = 1 - share
    if share == 0 or missing < 1e-12:
        return f"{100 * round(share):g} %"
    if share < 1e-9:
        return "< 1e-7 %"
    if share < 0.01:
        return f"{100 * share:.2g} %"
    digits = 1 if missing > 0.1 else 1 - math.floor(math.log10(100 * missing))
    return f"{100 * share:.{max(1, digits)}f} %"


def target(allowed: float) -> str:
    """Format a target from its allowed shortage probability."""
    return f"{100 * (1 - allowed):.12g} %"


def seconds(value: float) -> str:
    """Format a duration in ms or s."""
    if not math.isfinite(value):
        return "∞"
    if value < 1e-4:
        return "0"
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"


def number(value: float) -> str:
    """Format a count, possibly fractional."""
    return "∞" if math.isinf(value) else f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def money(value: float | None) -> str:
    """Format an amount; a dash without a price."""
    return "-" if value is None else f"{value:,.0f}"
