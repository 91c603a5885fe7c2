"""What the C allocator of a process has handed out and not got back. Only with glibc."""

import ctypes
import gc
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

NOT_GLIBC: Final = 3
"""Exit code of a script that cannot count."""


_FIELDS: Final = (
    "arena",
    "ordblks",
    "smblks",
    "hblks",
    "hblkhd",
    "usmblks",
    "fsmblks",
    "uordblks",
    "fordblks",
    "keepcost",
)


class _Mallinfo(ctypes.Structure):
    """Source: mallinfo2(3)."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS)


def used_bytes() -> int:
    """Bytes in use in C after a full collection of garbage; ends the process without glibc."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        raise SystemExit(NOT_GLIBC)
    libc.mallinfo2.restype = _Mallinfo
    gc.collect()
    now = libc.mallinfo2()
    return int(now.uordblks + now.hblkhd)


def printed_number(script: str, *arguments: str, limit_s: float) -> float:
    """What a script that counts prints, in a process of its own; skips the test without glibc."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    if done.returncode == NOT_GLIBC:
        pytest.skip("not glibc")
    assert done.returncode == 0, done.stderr[-2000:]
    return float(done.stdout)
