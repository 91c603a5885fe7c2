"""State files that could not be written, with the reason, until they are.

All writers of state report here, for one counter, one log line per file, and one file problem.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from xds_server.admin_api.status_types import FileDefect, FileProblem


class WriteFailures:
    """The files whose last write failed; may be updated from any thread."""

    def __init__(self, on_failure: Callable[[], object] = lambda: None) -> None:
        """``on_failure`` is called for each failed attempt."""
        self._on_failure = on_failure
        self._refused: dict[Path, str] = {}

    def record_failure(self, path: Path, reason: str) -> bool:
        """Record a failed write; returns whether it is new."""
        self._on_failure()
        news = self._refused.get(path) != reason
        self._refused[path] = reason
        return news

    def record_success(self, path: Path) -> None:
        """Record a successful write."""
        self._refused.pop(path, None)

    def file_problems(self) -> Iterator[FileProblem]:
        """The files that are not saved now."""
        for path, reason in tuple(self._refused.items()):
            sentence = f"{reason}; retrying. A restart before that loses it"
            yield FileProblem(what="state", defect=FileDefect.UNWRITTEN, file=str(path), sentence=sentence)
