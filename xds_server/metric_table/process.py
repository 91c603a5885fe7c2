"""Metrics of the process: those of every Python client, and which version this is."""

from typing import Final

from engine.process_metrics import CONTROL_PLANE
from xds_server.metric_table.documented import Documented, Kind, of


def _row(name: str, kind: Kind, unit: str, meaning: str, do: str) -> Documented:
    return Documented(name=f"process_{name}", kind=kind, unit=unit, meaning=meaning, do=do)


PROCESS: Final = (
    of(
        "build_info", "gauge", "boolean", "1, by part and version of Switchgear.",
        "Two versions for long: a rollout that stopped half way.",
        labels={"component": (CONTROL_PLANE,), "version": ()}, per=("version",),
    ),
    _row(
        "cpu_seconds_total", "counter", "seconds", "Time of a CPU that the process has used.",
        "Its rate above 0.8: docs/benchmarks.md says what engines and proxies cost.",
    ),
    _row(
        "resident_memory_bytes", "gauge", "bytes", "Memory that the process holds.",
        "Rising for days beyond what docs/limits.md says it grows by: a bug.",
    ),
    _row("virtual_memory_bytes", "gauge", "bytes", "Address space of the process.", "Nothing."),
    _row(
        "start_time_seconds", "gauge", "seconds", "When the process started, since the epoch.",
        "A change is a restart: the log before it says why.",
    ),
    _row(
        "open_fds", "gauge", "descriptors", "Open descriptors; each proxy and each agent is one or more.",
        "Near `process_max_fds`: raise the limit (SG233).",
    ),
    _row("max_fds", "gauge", "descriptors", "Descriptors that the process may have.", "As above."),
)  # fmt: skip
