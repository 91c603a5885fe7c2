"""Read regular files only, never pipes or devices."""

import errno
import os
import stat
from pathlib import Path


def read_regular_file(path: Path, most_bytes: int) -> bytes:
    """First bytes of a regular file, up to the limit; ``OSError`` otherwise.

    Opening a pipe would block until a writer comes, and with it the whole server.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        # Before creating a file object, which would fail on a folder and leave it open.
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        return file.read(most_bytes)
