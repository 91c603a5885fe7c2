"""Usage of tenants on disk: a file for each day; only today's is written again.

A file is complete and has a checksum. One that cannot be read costs its day and is moved away, so that it can be
looked at and is not overwritten; all others are used (docs/adr/0048-quotas-of-days-and-months.md).
"""

import contextlib
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from xds_server.state.atomic_file import remove_leftovers
from xds_server.state.versioned_file import StoreError, VersionedFile
from xds_server.telemetry.usage_by_day import UsageRow

FORMAT: Final = "switchgear-usage/1"
FOLDER: Final = "usage"
MAX_BYTES: Final = 16 * 1024 * 1024
_DAMAGED: Final = ".damaged"
_Count = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    port: int
    tenant: str
    model: str
    requests: _Count
    tokens: _Count
    corrected: _Count | None = None  # absent in files of older servers


class _Day(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    day: date
    rows: tuple[_Row, ...]


_FILE: Final = VersionedFile(format=FORMAT, content=_Day, max_bytes=MAX_BYTES, sealed=True, one_line=True)


def save(state_folder: Path, day: date, rows: Iterable[UsageRow]) -> None:
    """Replace the file of a day in one step; raises ``StoreError``."""
    content = {
        "day": day.isoformat(),
        "rows": [
            {
                "port": row.port,
                "tenant": row.tenant,
                "model": row.model,
                "requests": row.requests,
                "tokens": row.tokens,
                "corrected": row.corrected,
            }
            for row in rows
        ],
    }
    _FILE.write(usage_path(state_folder, day), content)


def read(state_folder: Path) -> tuple[Mapping[date, tuple[UsageRow, ...]], tuple[str, ...]]:
    """Usage by day, and why other files could not be used; those are renamed."""
    found: dict[date, tuple[UsageRow, ...]] = {}
    flaws = []
    for path in sorted((state_folder / FOLDER).glob("*.json")):
        try:
            one = _FILE.read(path)
            if one is None:
                continue
            if path != usage_path(state_folder, one.day):
                raise StoreError(f"{path} is of another day, {one.day}")
        except StoreError as error:
            flaws.append(str(error))
            with contextlib.suppress(OSError):
                path.replace(path.with_name(path.name + _DAMAGED))
            continue
        remove_leftovers(path)
        found[one.day] = tuple(
            UsageRow(
                port=row.port,
                tenant=row.tenant,
                model=row.model,
                requests=row.requests,
                tokens=row.tokens,
                corrected=row.tokens if row.corrected is None else row.corrected,
            )
            for row in one.rows
        )
    return found, tuple(flaws)


def forget(state_folder: Path, kept: Iterable[date]) -> None:
    """Remove files of other days than these; what cannot be removed is tried again later."""
    names = {usage_path(state_folder, day).name for day in kept}
    for path in (state_folder / FOLDER).glob("*.json"):
        if path.name not in names:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def usage_path(state_folder: Path, day: date) -> Path:
    """The file of a day."""
    return state_folder / FOLDER / f"{day.isoformat()}.json"
