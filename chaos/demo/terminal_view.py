"""Terminal output of the demo: a live view, then a table and a verdict.

Pure: values in, rich renderables out.
"""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich import box
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from chaos.demo.demo_plan import ZONES, Chapter
from chaos.demo.demo_verdict import DegradationStep, DemoVerdict, WhyOutput
from chaos.demo.scoring import Score

_STYLES = {
    "ready": "green",
    "busy": "green",
    "starting": "yellow",
    "draining": "yellow",
    "degraded": "yellow",
    "hung": "bold red",
    "dead": "bold red",
    "?": "dim",
}
_LEVEL_STYLES = ("green", "yellow", "bold magenta", "bold red", "bold red")
_QUOTE = "  | "
QUOTE_COLUMNS: Final = len(_QUOTE) + 1
"""Width of the quote prefix."""

_SYNC_STYLES = {"SYNCED": "green", "STALE": "yellow", "NACK": "bold red"}


_LEGEND: Final = (
    "lost: another engine could have served it; cut: stream cut when its engine died; shed: refused at "
    "once for lack of capacity; small: answered by the fallback, a smaller model, and marked as such. "
    "Plain Envoy cannot fall back when its pool is full."
)
_PAST: Final = "Before:"
_MOST_PAST: Final = 6
_MOST_REASONS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLine:
    """One engine as seen by the control plane; shares are of each side's attempts in the last second."""

    name: str
    zone: str
    verdict: str
    health: str
    share_percent: float
    plain_share_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SideLine:
    """State of one side over the last seconds; ``lost`` since the load started."""

    goodput_percent: float
    p50_s: float | None
    p99_s: float | None
    lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DegradationLine:
    """Degradation of the pool. ``asked_percent`` is the load in percent of capacity; None if unknown.

    ``fallback_percent`` is the share of recent good answers from the smaller model.
    """

    level: int
    reason: str
    asked_percent: float | None
    fallback_percent: float
    shed_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenFrame:
    """One frame of the live view.

    ``proxies`` maps a node to its worst sync state; ``reasons`` explain ejected engines with evidence.
    """

    time_s: float
    length_s: float
    chapter: Chapter
    doing: str
    engines: Sequence[EngineLine]
    proxies: Mapping[str, str]
    reasons: Sequence[str]
    ladder: DegradationLine
    sides: Mapping[str, SideLine]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReport:
    """An agent's report, with its time in seconds since the load started."""

    time_s: float
    engine: str
    verdict: str
    evidence: str


def live_view(frame: ScreenFrame) -> RenderableType:
    """The live view."""
    head = Text.assemble(
        (f" {frame.time_s:4.0f} / {frame.length_s:.0f} s  ", "bold reverse"),
        ("  ", ""),
        (frame.chapter, "bold"),
        (f"  {frame.doing}", "dim"),
    )
    proxies = Text("  ").join(
        Text.assemble((node, "bold"), " ", (state, _SYNC_STYLES.get(state, "")))
        for node, state in frame.proxies.items()
    )
    # A low terminal cuts off the end.
    return Group(
        head,
        Columns([_zone(zone, frame.engines) for zone in ZONES], padding=(0, 2)),
        Panel(_ladder(frame.ladder), title="degradation", title_align="left"),
        _sides(frame.sides),
        Panel(_reasons(frame.reasons), title="ejected", title_align="left"),
        proxies,
    )


def result_table(scores: Mapping[str, Mapping[Chapter, Score]]) -> RenderableType:
    """The table of all chapters on all sides."""
    table = Table(
        title="Same faults, same arrivals",
        title_justify="left",
        padding=0,
        show_edge=False,
        box=box.SIMPLE_HEAD,
    )
    table.add_column("chapter", min_width=14)
    table.add_column("side", no_wrap=True)
    for name in ("sent", "good\n%", "lost", "cut", "shed", "small", "p99\ns", "GPU s\nwaste", "tries"):
        table.add_column(name, justify="right", no_wrap=True)
    chapters = next(iter(scores.values())).keys()
    for chapter in chapters:
        for index, (side, by_chapter) in enumerate(scores.items()):
            found = by_chapter[chapter]
            table.add_row(
                chapter if index == 0 else "",
                side,
                str(found.requests),
                f"{found.goodput_percent:.1f}",
                _count(found.lost),
                _count(found.cut),
                _count(found.shed),
                Text(str(found.fallback), style="magenta" if found.fallback else ""),
                _number(found.good_p99_s),
                f"{found.wasted_slot_s:.1f}",
                f"{found.attempts:.2f}",
                end_section=index == len(scores) - 1,
            )
    return Group(table, Text(_LEGEND, style="dim italic"))


def why_text(answer: WhyOutput) -> RenderableType:
    """A ``why`` command and its output, with old events cut."""
    prompt = Text.assemble((f"at {answer.time_s:4.1f} s  ", "dim"), (f"$ switchgear why {answer.name}", "bold"))
    lines = answer.text.splitlines()
    shown = lines.index(_PAST) + 1 + _MOST_PAST if _PAST in lines else len(lines)
    rest = [f"... {len(lines) - shown} more lines"] if len(lines) > shown else []
    return Group(prompt, *(Text(f"{_QUOTE}{line}", style="cyan") for line in (*lines[:shown], *rest)))


def degradation_text(steps: Sequence[DegradationStep]) -> RenderableType:
    """Changes of the degradation level, one per line, with the control plane's reason."""
    lines = [
        Text.assemble(
            f"at {step.time_s:4.1f} s  level {step.before} -> ",
            (str(step.after), _LEVEL_STYLES[step.after]),
            f": {step.reason}",
        )
        for step in steps
    ]
    return Text("\n").join(lines) if lines else Text("degradation stayed at level 0", "yellow")


def agent_reports_text(spoken: Sequence[AgentReport]) -> RenderableType:
    """Agent reports that no health check reveals, one per line."""
    lines = [
        Text.assemble(
            f"at {one.time_s:4.1f} s  {one.engine} ",
            (one.verdict, _STYLES.get(one.verdict, "")),
            f": {one.evidence}",
        )
        for one in spoken
    ]
    return Text("\n").join(lines) if lines else Text("no agent reported a hung engine", "yellow")


def verdict_text(verdict: DemoVerdict) -> RenderableType:
    """The verdict, and one line per objection."""
    if verdict.passed:
        return Text(
            "VERDICT: passed. Switchgear lost no request that another engine could have served. Excess requests "
            "got "
            "marked answers of the smaller model.",
            "bold green",
        )
    return Text("\n").join(
        [Text("VERDICT: failed.", "bold red"), *(Text(f"  - {objection}") for objection in verdict.objections)]
    )


def svg(
    scores: Mapping[str, Mapping[Chapter, Score]],
    steps: Sequence[DegradationStep],
    answers: Sequence[WhyOutput],
    verdict: DemoVerdict,
) -> str:
    """Table, degradation levels, first ``why`` output and verdict as a self-contained SVG."""
    console = Console(record=True, width=104, file=io.StringIO())
    console.print(result_table(scores))
    console.print(degradation_text(steps))
    for answer in answers[:1]:
        console.print(why_text(answer))
    console.print(verdict_text(verdict))
    # Remove rich's web font; any monospace font works.
    return re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="make demo"), flags=re.DOTALL)


def _zone(zone: str, engines: Sequence[EngineLine]) -> RenderableType:
    """The engines of a zone, narrow enough for three zones in 80 columns."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, pad_edge=False)
    table.add_column(zone, min_width=2, no_wrap=True)
    table.add_column("verdict", min_width=8, no_wrap=True)
    table.add_column("share", justify="right", min_width=5, no_wrap=True)
    table.add_column("plain", justify="right", min_width=5, no_wrap=True, style="dim")
    for engine in engines:
        if engine.zone == zone:
            table.add_row(
                Text(engine.name, style="" if engine.health == "HEALTHY" else "strike"),
                Text(engine.verdict, style=_STYLES.get(engine.verdict, "")),
                f"{engine.share_percent:.0f} %",
                f"{engine.plain_share_percent:.0f} %",
            )
    return table


def _reasons(reasons: Sequence[str]) -> RenderableType:
    if not reasons:
        return Text("all engines in rotation", style="dim")
    more = len(reasons) - _MOST_REASONS
    return Text("\n".join((*reasons[:_MOST_REASONS], *([f"and {more} more"] if more > 0 else []))))


def _ladder(line: DegradationLine) -> RenderableType:
    share = "unknown" if line.asked_percent is None else f"{line.asked_percent:.0f} %"
    head = Text.assemble(
        (f"level {line.level}", _LEVEL_STYLES[line.level]),
        f"   load {share} of capacity   smaller model {line.fallback_percent:.0f} %   "
        f"shed {line.shed_per_s:.1f}/s",
    )
    # Level 0 needs no reason.
    return Group(head, Text(line.reason)) if line.level else head


def _sides(sides: Mapping[str, SideLine]) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("last 3 s", min_width=11)
    for name in ("goodput", "p50", "p99", "lost so far"):
        table.add_column(name, justify="right")
    for side, line in sides.items():
        table.add_row(
            Text(side, style="bold"),
            Text(f"{line.goodput_percent:.1f} %", style="green" if line.goodput_percent > 99.5 else "red"),
            _seconds(line.p50_s),
            _seconds(line.p99_s),
            _count(line.lost),
        )
    return table


def _count(count: int) -> Text:
    return Text(str(count), style="red" if count else "")


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"


def _number(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f}"
