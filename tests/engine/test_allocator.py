"""The C allocator: threads of one process share two arenas, and free memory goes back to the system."""

import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, re, sys, threading
from engine.allocator import limit_arenas
if sys.argv[1] == "limited" and not limit_arenas():
    sys.exit(3)
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
ready, over = threading.Barrier(17), threading.Event()
def work():
    libc.malloc(1000)
    ready.wait()
    over.wait()
threads = [threading.Thread(target=work) for _ in range(16)]
for thread in threads: thread.start()
ready.wait()
libc.malloc_stats()
over.set()
"""


def arenas(how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode == 3 or "Arena" not in done.stderr:
        pytest.skip("not glibc")
    return done.stderr.count("Arena ")


def test_threads_share_two_arenas() -> None:
    assert arenas("limited") <= 2 < arenas("default")


RELEASE_SCRIPT = """
import os
from pathlib import Path
from engine.allocator import trim_memory
def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
held = [bytes(4_000) for _ in range(20_000)]
del held[:-1]  # the last one keeps the heap from shrinking
before = resident_mib()
print(before, trim_memory(), resident_mib())
"""


def test_free_memory_between_objects_goes_back_to_the_system() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RELEASE_SCRIPT], capture_output=True, text=True, timeout=60, check=True
    )
    before, trimmed, after = done.stdout.split()
    if trimmed != "True":
        pytest.skip("not glibc")
    assert int(before) > 75
    assert int(after) < int(before) - 60
