"""An engine's call log on disk, which survives SIGKILL.

Each line is a call's record if the engine died now; the last line of a call counts. Lines are written when a call
arrives and closes, and every 0.25 s in between, so the cost of a killed engine is known to 0.25 s.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final, Self, TextIO

from pydantic import TypeAdapter, ValidationError

from chaos.fake_engine.call_log import CallRecord

KILLED: Final = "killed"
"""Reason of a call whose engine was killed."""

_RECORD: Final = TypeAdapter(CallRecord)


class CallJournal:
    """Appends to the file; ``earlier`` holds the records of previous runs by call id."""

    def __init__(self, file: TextIO, earlier: Mapping[int, CallRecord]) -> None:
        self._file = file
        self.earlier = earlier

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the journal in ``path``; create it if missing."""
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        file = path.open("a", encoding="utf-8", buffering=1)
        if text and not text.endswith("\n"):
            file.write("\n")  # terminates a line that was cut by the kill
        return cls(file, _calls(text))

    def note(self, call_id: int, record: CallRecord) -> None:
        """Record the call's state; once it returns, the record survives SIGKILL."""
        self._file.write(json.dumps([call_id, asdict(record)]) + "\n")

    def close(self) -> None:
        self._file.close()


def _calls(text: str) -> Mapping[int, CallRecord]:
    calls: dict[int, CallRecord] = {}
    for line in text.splitlines():
        try:
            call_id, record = json.loads(line)
            calls[call_id] = _RECORD.validate_python(record)
        except (ValueError, ValidationError):
            continue  # truncated line
    return calls
