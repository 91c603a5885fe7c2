"""The book of an engine on disk, so that it survives a SIGKILL.

Each line is one call as it would be booked if the engine died now; the last line of a call holds. Lines are
written when a call comes, when it closes, and now and then in between, so that what a killed engine had spent is
known to a quarter of a second.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final, Self, TextIO

from pydantic import TypeAdapter, ValidationError

from chaos.fake_engine.call_log import CallRecord

KILLED: Final = "killed"
"""The reason of a call whose engine died under it."""

_RECORD: Final = TypeAdapter(CallRecord)


class CallJournal:
    """Open for writing at the end of what earlier lives of the engine wrote: ``earlier``, by call id."""

    def __init__(self, file: TextIO, earlier: Mapping[int, CallRecord]) -> None:
        self._file = file
        self.earlier = earlier

    @classmethod
    def open(cls, path: Path) -> Self:
        """The journal in ``path``, made where there is none."""
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        file = path.open("a", encoding="utf-8", buffering=1)
        if text and not text.endswith("\n"):
            file.write("\n")  # what was being written when the engine died ends here
        return cls(file, _calls(text))

    def note(self, call_id: int, record: CallRecord) -> None:
        """This call is so now; on return it is the kernel's to keep."""
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
            continue  # half a line
    return calls
