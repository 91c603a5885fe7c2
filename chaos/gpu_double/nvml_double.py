"""Building the NVML double, and its control file.

The double is a C library, because what is to be fooled is the real pynvml, which loads one. It is built where it
is needed; a machine without a C compiler cannot have it.
"""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parent / "nvml_double.c"
MAX_CLOCK_MHZ: Final = 1980
"""Of the SMs, as the healthy double says."""

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
"""What a GPU says that nothing is wrong with; the keys are explained in the C file."""

_BUILD_LIMIT_S: Final = 60.0


class CompilerError(RuntimeError):
    """The double could not be built; the message says why, and what to do."""


def compiler() -> str | None:
    """The C compiler that would be used; None where there is none."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def needed_compiler() -> str:
    """The same, for who cannot do without; CompilerError says so and what to do."""
    found = compiler()
    if found is None:
        raise CompilerError(
            "GPU faults need the NVML double, which is built on the spot, and there is no C compiler here: "
            "install one (Debian: apt-get install gcc libc6-dev), or leave out the scenario's gpu_* faults"
        )
    return found


def build_library(folder: Path, *, without: Sequence[str] = ()) -> Path:
    """The library, made in ``folder``; calls in ``without`` are not exported. CompilerError where that fails."""
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
    """What makes a process load the library in ``folder`` and read ``control``."""
    return {"LD_LIBRARY_PATH": str(folder), "NVML_DOUBLE": str(control)}


def write_control(path: Path, lines: Sequence[str] = (), *, healthy: Mapping[str, object] = HEALTHY) -> None:
    """Make the control file say ``healthy`` and then ``lines``, of which the last on a matter holds.

    A reader sees the file as it was or as it is, never half of it.
    """
    text = "".join(f"{key} {value}\n" for key, value in healthy.items()) + "".join(f"{line}\n" for line in lines)
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def _script(without: Sequence[str]) -> str:
    """A version script that exports all calls of the double but ``without``."""
    calls = set(re.findall(r"\bnvml[A-Z]\w+", SOURCE.read_text(encoding="utf-8")))
    exported = " ".join(f"{name};" for name in sorted(calls - set(without)))
    return f"{{ global: {exported} local: *; }};\n"
