"""API key of an engine, from a file that is read again when it changes."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from engine.regular_file import read_regular_file

MAX_KEY_BYTES: Final = 4096

_log = structlog.get_logger()


def parse_api_key(content: bytes) -> str:
    """The key in a file; ``ValueError`` states what is wrong and never contains it."""
    key = content.strip()
    if not key:
        raise ValueError("is empty")
    if len(content) > MAX_KEY_BYTES:
        raise ValueError(f"exceeds {MAX_KEY_BYTES} bytes")
    # Anything else could not be sent in a header.
    if not all(0x21 <= one <= 0x7E for one in key):
        raise ValueError("must hold one key: printable ASCII without spaces")
    return key.decode("ascii")


class ApiKeyFile:
    """The key in ``path``, checked at each call; the last good one while the file is unusable.

    ``ValueError`` or ``OSError`` at construction if it is unusable then.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = self._stat()
        self._key = self._read()
        self._trouble = ""

    def __call__(self) -> str:
        """The key in force."""
        try:
            stamp = self._stat()
            if stamp != self._stamp:
                self._key = self._read()
                self._stamp = stamp
                _log.info("api_key.changed", file=str(self._path))
            self._trouble = ""
        except (OSError, ValueError) as error:
            trouble = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            if trouble != self._trouble:
                self._trouble = trouble
                _log.error(
                    "api_key.refused", file=str(self._path), reason=trouble, effect="the previous key stays in use"
                )
        return self._key

    def _read(self) -> str:
        return parse_api_key(read_regular_file(self._path, MAX_KEY_BYTES + 1))

    def _stat(self) -> tuple[int, int, int]:
        found = self._path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns


ApiKey = Callable[[], str]
"""The key in force; empty for none."""
