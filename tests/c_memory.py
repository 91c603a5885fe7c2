"""What the C allocator of this process has handed out and not got back. Only with glibc."""

import ctypes
import gc
from typing import Final

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
