"""The engines of a running server as a table: what was said of each, by whom, and how long ago.

A fleet does not fit on a screen, so those that need a look come first and the rest is counted.
"""

from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from xds_server.cli.forms import show_table
from xds_server.diagnosis.check import age

MOST_ROWS: Final = 20
_STYLES: Final = {"HEALTHY": "green", "DRAINING": "yellow", "UNHEALTHY": "bold red"}
_CALM_GPU: Final = ("", "none")


def show_engines(console: Console, engines: Sequence[dict[str, Any]], *, every: bool = False) -> None:
    """Print a count by pool and health, and the engines that matter most, or every one."""
    most = len(engines) if every else MOST_ROWS
    counts: dict[str, dict[str, int]] = {}
    for engine in engines:
        by_health = counts.setdefault(engine["pool"], {})
        health = engine["health"] or "UNKNOWN"
        by_health[health] = by_health.get(health, 0) + 1
    for pool, by_health in counts.items():
        line = ", ".join(f"{count} {health}" for health, count in sorted(by_health.items()))
        console.print(Text(f"engines of {pool}: {line}"), soft_wrap=True)
    if not engines:
        return
    # In a narrow terminal the reason is cut, and nothing else: a row that runs over two lines is read as two.
    short = [Column(title, no_wrap=True) for title in ("engine", "health", "verdict", "from", "age", "GPU")]
    table = Table(*short, "why", box=None, pad_edge=False)
    for engine in sorted(engines, key=_calmness)[:most]:
        health = engine["health"] or "UNKNOWN"
        said = engine["report_age_s"]
        table.add_row(
            Text(f"{engine['pool']}/{engine['engine']}"),
            Text(health, style=_STYLES.get(health, "")),
            Text(engine["verdict"] or "-"),
            Text(_source(engine)),
            Text("-" if said is None else age(said)),
            Text(_gpu(engine["gpu"])),
            Text(
                engine["reason"] if engine["health"] != "HEALTHY" else engine["evidence"],
                no_wrap=True,
                overflow="ellipsis",
            ),
        )
    show_table(console, table)
    if len(engines) > most:
        console.print(Text(f"... and {len(engines) - most} more (-o wide shows all)"))


def _calmness(engine: dict[str, Any]) -> int:
    """0 for what needs a look first."""
    if engine["health"] != "HEALTHY":
        return 0
    if engine["verdict"] not in ("ready", "busy"):
        return 1
    gpu, agent = engine["gpu"], engine["agent"]
    calm = (gpu is None or gpu["action"] in _CALM_GPU) and (agent is None or agent["connected"])
    return 3 if calm else 2


def _source(engine: dict[str, Any]) -> str:
    source = engine["source"] or "-"
    return source if engine["agent"] is None or engine["agent"]["connected"] else f"{source}, agent lost"


def _gpu(gpu: dict[str, Any] | None) -> str:
    """What the GPUs ask for where they do, how many there are and how hot the hottest is.

    Why none is seen is a sentence, which would push the reasons out of the table; the JSON has it.
    """
    if gpu is None:
        return "-"
    degrees = [one["temperature_c"] for one in gpu["gpus"] if one["temperature_c"] is not None]
    heat = f", {max(degrees)} °C" if degrees else ""
    asks = "" if gpu["action"] in _CALM_GPU else f"{gpu['action']}: "
    return f"{asks}{len(gpu['gpus'])}{heat}" if gpu["gpus"] else f"{asks}none seen"
