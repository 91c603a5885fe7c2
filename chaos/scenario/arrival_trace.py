"""Recorded arrivals: a CSV file with a header line, one request per row.

Columns: ``at_s`` (seconds from the start); optional: ``streaming`` and ``batch`` (true or false),
``prompt_tokens`` and ``output_tokens``. Empty cells and missing columns are drawn from the scenario's load. Rows
may be in any order.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from policies.findings import did_you_mean

MOST_ROWS: Final = 1_000_000
_MOST_COMPLAINTS: Final = 20


class TraceRow(BaseModel):
    """One request of a trace; None values are drawn from the scenario's load."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    at_s: float = Field(ge=0, le=86_400)
    streaming: bool | None = None
    batch: bool | None = None
    prompt_tokens: int | None = Field(None, ge=1, le=100_000)
    output_tokens: int | None = Field(None, ge=1, le=100_000)


class TraceError(Exception):
    """An invalid trace; each of ``complaints`` is a line ``file:line: column: problem``."""

    def __init__(self, complaints: Sequence[str]) -> None:
        """Join all complaints into the message."""
        self.complaints = tuple(complaints)
        super().__init__("\n".join(complaints))


def read_trace(path: Path) -> tuple[TraceRow, ...]:
    """The rows of the file, sorted by time; raises TraceError with all problems."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return tuple(sorted(_rows(path, csv.DictReader(file)), key=lambda row: row.at_s))
    except OSError as error:
        raise TraceError([f"{path}: {error.strerror or error}"]) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError([f"{path}: not a CSV text file: {error}"]) from error


def _rows(path: Path, reader: "csv.DictReader[str]") -> list[TraceRow]:
    _check_header(path, reader.fieldnames or ())
    rows: list[TraceRow] = []
    complaints: list[str] = []
    for cells in reader:
        # csv puts surplus cells under the key None.
        if None in cells:
            complaints.append(f"{path}:{reader.line_num}: more cells than the header has columns")
            continue
        try:
            rows.append(
                TraceRow.model_validate({name: text for name, text in cells.items() if (text or "").strip()})
            )
        except ValidationError as error:
            complaints += [f"{path}:{reader.line_num}: {_told(one)}" for one in error.errors()]
        if len(complaints) > _MOST_COMPLAINTS:
            complaints[_MOST_COMPLAINTS:] = ["more problems omitted"]
            break
        if len(rows) > MOST_ROWS:
            complaints.append(f"{path}:{reader.line_num}: more than {MOST_ROWS} rows")
            break
    if not rows and not complaints:
        complaints.append(f"{path}: no rows, so no requests")
    if complaints:
        raise TraceError(complaints)
    return rows


def _check_header(path: Path, names: Sequence[str]) -> None:
    known = tuple(TraceRow.model_fields)
    complaints = []
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or f"use one of {', '.join(known)}"
            complaints.append(f"{path}:1: unknown column {name!r}; {hint}")
        elif list(names).count(name) > 1:
            complaints.append(f"{path}:1: duplicate column {name!r}")
    if "at_s" not in names:
        complaints.append(f"{path}:1: missing column at_s (seconds from the start)")
    if complaints:
        raise TraceError(list(dict.fromkeys(complaints)))


def _told(one: ErrorDetails) -> str:
    column = ".".join(map(str, one["loc"]))
    return f"{column}: {one['msg']}" + ("" if one["type"] == "missing" else f", not {one['input']!r}")
