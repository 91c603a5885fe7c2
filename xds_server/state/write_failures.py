"""What the disk refuses of the state: which file, why, and that it has not been written since.

Everything that keeps something tells it here, so that one counter, one line of the log for each file and one
trouble say the same.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from xds_server.admin_api.status_types import FileDefect, FileProblem


class WriteFailures:
    """The files that could not be written when that was last tried; told of from any thread."""

    def __init__(self, on_failure: Callable[[], object] = lambda: None) -> None:
        """``on_failure`` is called for each failed attempt."""
        self._on_failure = on_failure
        self._refused: dict[Path, str] = {}

    def record_failure(self, path: Path, reason: str) -> bool:
        """Note that this could not be written; whether that is news."""
        self._on_failure()
        news = self._refused.get(path) != reason
        self._refused[path] = reason
        return news

    def record_success(self, path: Path) -> None:
        """Note that this is written."""
        self._refused.pop(path, None)

    def file_problems(self) -> Iterator[FileProblem]:
        """What is not on disk now."""
        for path, reason in tuple(self._refused.items()):
            sentence = f"{reason}; it is tried again, and a restart before that begins without it"
            yield FileProblem(what="state", defect=FileDefect.UNWRITTEN, file=str(path), sentence=sentence)
