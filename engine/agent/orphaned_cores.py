"""Engine cores of vLLM that outlived their API server, in this process namespace.

``kill -9`` of an API server leaves its engine core running: it serves no request and keeps its GPU memory, so the
next engine may not start. Its parent is then an init process instead of vLLM.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TITLE: Final = "VLLM::EngineCore"
# The API server runs in Python; vLLM may rename it.
_PARENTS: Final = ("python", "vllm")


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanedCore:
    """One engine core without an API server."""

    pid: int
    title: str

    @property
    def sentence(self) -> str:
        """What it is, and the command that ends it."""
        return (
            f"{self.title} (process {self.pid}) has no API server and keeps its GPU memory; "
            f"end it: kill -9 {self.pid}"
        )


def orphaned_cores(proc: Path = Path("/proc")) -> tuple[OrphanedCore, ...]:
    """Orphaned engine cores by process id; empty without ``proc``."""
    try:
        pids = sorted(int(one.name) for one in proc.iterdir() if one.name.isdecimal())
    except OSError:
        return ()
    found = []
    for pid in pids:
        title = _command(proc, pid)
        if title.startswith(_TITLE) and not _is_api_server(proc, pid):
            found.append(OrphanedCore(pid=pid, title=title))
    return tuple(found)


def _is_api_server(proc: Path, pid: int) -> bool:
    """Whether the parent of a process may be an API server."""
    parent = _command(proc, _parent(proc, pid)).rpartition("/")[2].lower()
    return any(name in parent for name in _PARENTS)


def _command(proc: Path, pid: int) -> str:
    """First word of the command line; empty for a process that has ended."""
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return words[0].decode(errors="replace").strip()


def _parent(proc: Path, pid: int) -> int:
    """Process id of the parent; 0 for none."""
    try:
        # The name in parentheses may contain spaces.
        fields = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(fields[1])
    except (OSError, IndexError, ValueError):
        return 0
