"""Settings of the C allocator (glibc); no-ops with another one."""

import ctypes
import gc
from typing import Final

ARENAS: Final = 2
"""Arenas of malloc. By default each thread gets one, and keeps what was freed in it: gRPC has about 12 threads."""

_M_ARENA_MAX: Final = -8
"""Source: malloc.h of glibc."""


def limit_arenas(most: int = ARENAS) -> bool:
    """Limit the arenas of this process; call before threads start. Whether the allocator knows the setting."""
    try:
        return bool(ctypes.CDLL(None).mallopt(_M_ARENA_MAX, most))
    except (OSError, AttributeError):
        return False


def release_memory() -> None:
    """Free recent garbage, and return free memory to the system, as after a flood. Takes some milliseconds.

    Only recent garbage: what a collection of older garbage finds alive waits for the next one, up to an hour.
    """
    gc.collect(0)
    trim_memory()


def trim_memory() -> bool:
    """Return free memory to the system; whether there was any. Takes some milliseconds."""
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (OSError, AttributeError):
        return False
