"""What the demonstration shows in the terminal: a live view while it runs, a table and a verdict at the end.

Pure: values in, rich renderables out.
"""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from chaos.demo.plan import ZONES, Chapter
from chaos.demo.score import Score, Verdict

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
_SYNC_STYLES = {"SYNCED": "green", "STALE": "yellow", "NACK": "bold red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLine:
    """One engine as the control plane sees it; the shares are of each side's attempts in the last second."""

    name: str
    zone: str
    verdict: str
    health: str
    share_percent: float
    plain_share_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SideLine:
    """How one side does over the last seconds; ``lost`` since the load began."""

    goodput_percent: float
    p50_s: float | None
    p99_s: float | None
    lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Everything on the screen at one moment.

    ``proxies`` maps a node to its worst sync state; ``reasons`` say why engines are out, with the evidence.
    """

    time_s: float
    length_s: float
    chapter: Chapter
    doing: str
    engines: Sequence[EngineLine]
    proxies: Mapping[str, str]
    reasons: Sequence[str]
    sides: Mapping[str, SideLine]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """What the agent of an engine said, and when; seconds since the load began."""

    time_s: float
    engine: str
    verdict: str
    evidence: str


def live(frame: Frame) -> RenderableType:
    """The live view."""
    head = Text.assemble(
        (f" {frame.time_s:4.0f} / {frame.length_s:.0f} s  ", "bold reverse"),
        ("  ", ""),
        (frame.chapter, "bold"),
        (f"  {frame.doing}", "dim"),
    )
    zones = Columns([_zone(zone, frame) for zone in ZONES], equal=True)
    proxies = Text("  ").join(
        Text.assemble((node, "bold"), " ", (state, _SYNC_STYLES.get(state, "")))
        for node, state in frame.proxies.items()
    )
    reasons = Text("\n".join(frame.reasons) or "every engine takes requests", style="" if frame.reasons else "dim")
    return Group(
        head,
        zones,
        Panel(reasons, title="out, and why", title_align="left"),
        Panel(proxies, title="proxies", title_align="left"),
        _sides(frame.sides),
    )


def final(scores: Mapping[str, Mapping[Chapter, Score]]) -> RenderableType:
    """The table of all chapters on all sides."""
    table = Table(
        title="The same faults, the same arrivals",
        caption="lost: another engine could have served it; cut: a stream that had begun when its engine died",
        title_justify="left",
        caption_justify="left",
        pad_edge=False,
        collapse_padding=True,
        box=box.SIMPLE_HEAD,
    )
    table.add_column("chapter", min_width=14)
    table.add_column("side", no_wrap=True)
    for name in ("sent", "good %", "lost", "cut", "p99 s", "GPU s\nwasted", "tries"):
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
                _number(found.good_p99_s),
                f"{found.wasted_slot_s:.1f}",
                f"{found.attempts:.2f}",
                end_section=index == len(scores) - 1,
            )
    return table


def told(spoken: Sequence[Spoken]) -> RenderableType:
    """What agents said that no health check would have known, one line each."""
    lines = [
        Text.assemble(
            f"at {one.time_s:4.1f} s  {one.engine} ",
            (one.verdict, _STYLES.get(one.verdict, "")),
            f": {one.evidence}",
        )
        for one in spoken
    ]
    return Text("\n").join(lines) if lines else Text("no agent saw an engine hang", "yellow")


def judgement(verdict: Verdict) -> RenderableType:
    """The verdict in a sentence, and each objection in one."""
    if verdict.passed:
        return Text(
            "VERDICT: passed. Switchgear lost no request that another engine could have served.", "bold green"
        )
    return Text("\n").join(
        [Text("VERDICT: failed.", "bold red"), *(Text(f"  - {objection}") for objection in verdict.objections)]
    )


def svg(scores: Mapping[str, Mapping[Chapter, Score]], verdict: Verdict) -> str:
    """The table and the verdict as an SVG picture that needs nothing from a network."""
    console = Console(record=True, width=96, file=io.StringIO())
    console.print(final(scores))
    console.print(judgement(verdict))
    # rich would fetch a font; any monospace one will do.
    return re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="make demo"), flags=re.DOTALL)


def _zone(zone: str, frame: Frame) -> RenderableType:
    table = Table(title=f"zone {zone}", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("")
    table.add_column("verdict", min_width=8)
    table.add_column("share", justify="right", min_width=5)
    table.add_column("plain", justify="right", min_width=5, style="dim")
    for engine in frame.engines:
        if engine.zone == zone:
            out = engine.health != "HEALTHY"
            table.add_row(
                Text(engine.name, style="strike" if out else ""),
                Text(engine.verdict, style=_STYLES.get(engine.verdict, "")),
                f"{engine.share_percent:.0f} %",
                f"{engine.plain_share_percent:.0f} %",
            )
    return table


def _sides(sides: Mapping[str, SideLine]) -> RenderableType:
    table = Table()
    table.add_column("last 3 s")
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
