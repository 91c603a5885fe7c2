"""CPU time of an experiment's parts and of the machine over a period."""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from chaos.history.history_events import CpuUsage

SAMPLE_EVERY_S: Final = 2.0
"""Sampling interval; a killed process loses its CPU account."""

OURSELVES: Final = "load generator"

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class CpuMeter:
    """``parts`` returns the current process groups of each part; a part may get new ones.

    CPU time of a process that ends between two samples is lost.
    """

    def __init__(self, parts: Callable[[], Mapping[str, Iterable[int]]]) -> None:
        self._parts = parts
        self._began_s = time.monotonic()
        self._own_s = time.process_time()
        self._machine = _machine_s()
        self._before = {pid: cpu_s for account in _accounts().values() for pid, cpu_s in account.items()}
        self._used_s: dict[str, dict[int, float]] = {}

    @property
    def elapsed_s(self) -> float:
        """Seconds since its creation."""
        return time.monotonic() - self._began_s

    def sample(self) -> None:
        """Read all CPU accounts."""
        accounts = _accounts()
        for part, groups in self._parts().items():
            used_s = self._used_s.setdefault(part, {})
            for group in groups:
                for pid, cpu_s in accounts.get(group, {}).items():
                    # A process started after us began at 0.
                    used_s[pid] = cpu_s - self._before.get(pid, 0.0)

    def usage(self, at_s: float) -> CpuUsage:
        """Usage since its creation; ``at_s`` is now, on the experiment's clock."""
        self.sample()
        elapsed_s = self.elapsed_s
        shares = {
            part: 100.0 * sum(used_s.values()) / elapsed_s for part, used_s in self._used_s.items() if used_s
        }
        shares[OURSELVES] = 100.0 * (time.process_time() - self._own_s) / elapsed_s
        busy_s, all_s = (after - before for after, before in zip(_machine_s(), self._machine, strict=True))
        cores = all_s / elapsed_s
        return CpuUsage(
            at_s=at_s,
            processes=shares,
            machine=100.0 * busy_s / all_s if all_s else 0.0,
            ours=sum(shares.values()) / cores if cores else 0.0,
        )


def _accounts() -> dict[int, dict[int, float]]:
    """CPU seconds of every process, by process group and pid."""
    found: dict[int, dict[int, float]] = {}
    for pid in os.listdir("/proc"):  # noqa: PTH208 -- a Path for each process would take as long as reading it
        if not pid.isdecimal():
            continue
        try:
            descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
        except OSError:
            continue  # it has just ended
        try:
            # After the name in parentheses: state is field 3, pgrp 5, utime and stime 14 and 15 (proc(5)).
            fields = os.read(descriptor, 4096).rpartition(b")")[2].split()
        except ProcessLookupError:
            continue
        finally:
            os.close(descriptor)
        cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
        found.setdefault(int(fields[2]), {})[int(pid)] = cpu_s
    return found


def _machine_s() -> tuple[float, float]:
    """Busy seconds and all seconds of all cores since boot (proc(5))."""
    user, nice, system, idle, iowait, irq, softirq, steal = (
        int(one) for one in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    busy = user + nice + system + irq + softirq + steal
    return busy / _TICKS_PER_S, (busy + idle + iowait) / _TICKS_PER_S
