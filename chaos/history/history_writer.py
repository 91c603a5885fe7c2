"""Write a history: every event is in the file at once, so it survives a kill."""

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from chaos.history.event_codec import HistoryError, as_line
from chaos.history.history_events import HistoryEvent


class HistoryFile:
    """``with HistoryFile(path) as history: history.write(event)``; the first event must be ``ExperimentBegan``.

    Replaces an existing history. Raises HistoryError if the file is not a history, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def __enter__(self) -> Self:
        try:
            if self._path.is_file() and not _may_be_replaced(self._path):
                raise HistoryError(f"{self._path}: exists and is not a history; choose another file")
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise HistoryError(f"{self._path}: {error.strerror or error}") from error
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def write(self, event: HistoryEvent) -> None:
        """Add one event."""
        rest = as_line(event)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            raise HistoryError(f"{self._path}: {error.strerror or error}") from error


def _may_be_replaced(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(9) in (b"", b'{"event":')
