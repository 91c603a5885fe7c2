"""What a process holds, and how long it waited for a core, as the kernel tells. Linux only.

Source: proc(5); sched-stats.rst of the kernel for ``schedstat``, whose second number is the wait in nanoseconds.
"""

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_KIB: Final = 1024

MEASURES: Final = ("resident_bytes", "own_bytes", "dirty_bytes", "descriptors", "threads")
"""The fields that may grow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUsage:
    """Usage of a process at ``at_s``: resident memory, private memory, open files, threads.

    ``dirty_bytes``: private memory without pages of files that only this process has mapped now. Those count among
    ``own_bytes`` or not by whether another process runs the same program.
    ``waited_s``: total time each thread, by id, has waited for a core.
    """

    at_s: float
    resident_bytes: int
    own_bytes: int
    dirty_bytes: int
    descriptors: int
    threads: int
    waited_s: Mapping[int, float]


def process_usage(pid: int, at_s: float) -> ProcessUsage | None:
    """What it holds now; None when it is gone."""
    home = Path("/proc") / str(pid)
    with contextlib.suppress(OSError, IndexError, ValueError):
        rollup = (home / "smaps_rollup").read_text().splitlines()
        tasks = list((home / "task").iterdir())
        return ProcessUsage(
            at_s=at_s,
            resident_bytes=int((home / "statm").read_text().split()[1]) * _PAGE_BYTES,
            own_bytes=_bytes_of(rollup, "Private_Dirty", "Private_Clean"),
            dirty_bytes=_bytes_of(rollup, "Private_Dirty"),
            descriptors=sum(1 for _ in (home / "fd").iterdir()),
            threads=len(tasks),
            waited_s={int(task.name): _waited_s(task) for task in tasks},
        )
    return None


def _bytes_of(rollup: Sequence[str], *kinds: str) -> int:
    return sum(int(line.split()[1]) * _KIB for line in rollup if line.startswith(kinds))


def _waited_s(task: Path) -> float:
    with contextlib.suppress(OSError, IndexError, ValueError):  # a thread that ended, a kernel that does not count
        return int((task / "schedstat").read_text().split()[1]) / 1e9
    return 0.0
