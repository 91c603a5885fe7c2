"""Switchgear with a wall clock that is wrong: ``python -m benchmarks.soak.shifted_clock FILE serve ...``.

The file holds by how many seconds, as ``write_shift`` writes it; the process follows it at once. The monotonic
clock is right, as it is when a machine's time is set.
"""

import mmap
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_SHIFT: Final = struct.Struct("<d")


def write_shift(path: Path, by_s: float) -> None:
    """Let the clocks that follow this file be wrong by this much."""
    path.touch()
    with path.open("r+b") as file:  # in place, for processes have it mapped
        file.write(_SHIFT.pack(by_s))


def follow(path: Path) -> None:
    """Shift the wall clock of this process from now on; call before other modules take ``time.time``."""
    with path.open("rb") as file:
        shift = mmap.mmap(file.fileno(), _SHIFT.size, access=mmap.ACCESS_READ)
    right_s, right_ns = time.time, time.time_ns

    def by_s() -> float:
        return float(_SHIFT.unpack_from(shift)[0])

    time.time = lambda: right_s() + by_s()
    time.time_ns = lambda: right_ns() + round(by_s() * 1e9)


def main(argv: Sequence[str]) -> None:
    """Run ``switchgear`` with these arguments after the file's name."""
    follow(Path(argv[0]))
    from xds_server.cli import entry  # noqa: PLC0415 -- binds the clock when it is imported

    sys.argv[1:] = argv[1:]
    entry()


if __name__ == "__main__":
    main(sys.argv[1:])
