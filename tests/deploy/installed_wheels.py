"""Wheels of packages that are installed here, so that pip can install them elsewhere without network."""

import importlib.metadata
import io
import zipfile
from collections.abc import Iterable
from importlib.metadata import Distribution, PackagePath
from pathlib import Path
from typing import Final

_WRITTEN_BY_PIP: Final = ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json")


def write_wheels(names: Iterable[str], folder: Path) -> None:
    """Pack each installed package as a wheel in ``folder``."""
    for name in names:
        _write(importlib.metadata.distribution(name), folder)


def _write(distribution: Distribution, folder: Path) -> None:
    read = distribution.read_text("WHEEL") or ""
    tags = [line.partition(": ")[2].split("-") for line in read.splitlines() if line.startswith("Tag: ")]
    joined = "-".join(".".join(dict.fromkeys(part)) for part in zip(*tags, strict=True))
    info = next(file.parts[0] for file in distribution.files or () if file.parts[0].endswith(".dist-info"))
    record = io.StringIO()
    with zipfile.ZipFile(folder / f"{info.removesuffix('.dist-info')}-{joined}.whl", "w") as wheel:
        for file in distribution.files or ():
            if _is_part(file, distribution):
                wheel.write(Path(str(file.locate())), str(file))
                record.write(f'"{file}",,\n')
        record.write(f"{info}/RECORD,,\n")
        wheel.writestr(f"{info}/RECORD", record.getvalue())


def _is_part(file: PackagePath, distribution: Distribution) -> bool:
    if file.parts[0] == "..":
        # pip writes programs itself, from entry points.
        assert file.name in distribution.entry_points.names, file
        return False
    return "__pycache__" not in file.parts and file.name not in _WRITTEN_BY_PIP
