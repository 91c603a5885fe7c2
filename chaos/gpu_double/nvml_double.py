"""Build the NVML double and write its control file.

The double is a C library, because the real pynvml loads one. It is built on demand and needs a C compiler.
"""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parent / "nvml_double.c"
MAX_CLOCK_MHZ: Final = 1980
"""SM clock of the healthy double."""

HEALTHY: Final[Mapping[str, object]] = {
    "driver": "570.86.15",
    "gpus": 1,
    "*.temperature0": 55,
    "*.threshold1": 90,
    "*.power_mw": 412_500,
    "*.power_limit_mw": 700_000,
    "*.throttle": 0,
    "*.clock1": 1755,
    "*.clock2": 2619,
    "*.max_clock1": MAX_CLOCK_MHZ,
    "*.utilisation": 87,
    "*.memory_utilisation": 41,
    "*.memory_total": 85_899_345_920,
    "*.memory_used": 77_309_411_328,
    "*.memory_reserved": 603_979_776,
    "*.ecc": 1,
    "*.ecc_corrected": 0,
    "*.ecc_uncorrected": 0,
    "*.ecc_corrected_total": 9,
    "*.ecc_uncorrected_total": 1,
    "*.rows_uncorrectable": 0,
    "*.retired0": 2,
    "*.retirement_pending": 0,
    "*.links": 18,
    "*.pcie_replays": 3,
    "*.persistence": 1,
    "*.mig": 0,
    "*.field230": 0,
}
"""Values of a healthy GPU; the C file documents the keys."""

_BUILD_LIMIT_S: Final = 60.0


class CompilerError(RuntimeError):
    """The double could not be built; the message has the cause and the fix."""


def compiler() -> str | None:
    """The C compiler to use; None if none is installed."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def needed_compiler() -> str:
    """The C compiler; raises CompilerError with the fix if none is installed."""
    found = compiler()
    if found is None:
        raise CompilerError(
            "no C compiler, needed to build the NVML double for GPU faults; "
            "install one (Debian: apt-get install gcc libc6-dev), or remove the scenario's gpu_* faults"
        )
    return found


def build_library(folder: Path, *, without: Sequence[str] = ()) -> Path:
    """Build the library in ``folder`` without the calls in ``without``; raises CompilerError on failure."""
    found = needed_compiler()
    script = folder / "symbols"
    script.write_text(_script(without), encoding="utf-8")
    library = folder / "libnvidia-ml.so.1"
    command = [
        found,
        "-shared",
        "-fPIC",
        "-O1",
        f"-Wl,--version-script={script}",
        "-o",
        str(library),
        str(SOURCE),
    ]
    built = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_BUILD_LIMIT_S)  # noqa: S603 -- the compiler found above, on our own file
    if built.returncode != 0:
        raise CompilerError(f"{found} could not build the NVML double:\n{built.stderr.strip()}")
    return library


def environment(folder: Path, control: Path) -> Mapping[str, str]:
    """Environment that makes a process load the library in ``folder`` and read ``control``."""
    return {"LD_LIBRARY_PATH": str(folder), "NVML_DOUBLE": str(control)}


def write_control(path: Path, lines: Sequence[str] = (), *, healthy: Mapping[str, object] = HEALTHY) -> None:
    """Write ``healthy`` and then ``lines`` to the control file; the last line for a key wins.

    The write is atomic.
    """
    text = "".join(f"{key} {value}\n" for key, value in healthy.items()) + "".join(f"{line}\n" for line in lines)
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def _script(without: Sequence[str]) -> str:
    """A version script that exports all calls of the double except ``without``."""
    calls = set(re.findall(r"\bnvml[A-Z]\w+", SOURCE.read_text(encoding="utf-8")))
    exported = " ".join(f"{name};" for name in sorted(calls - set(without)))
    return f"{{ global: {exported} local: *; }};\n"
