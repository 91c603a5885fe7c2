"""Reading files that somebody may have replaced by something else: no pipe is waited for, no device is read."""

import errno
import os
import stat
from pathlib import Path


def read_regular_file(path: Path, most_bytes: int) -> bytes:
    """The beginning of a file, at most so many bytes; ``OSError`` where it cannot be read or is none.

    What waits for a pipe waits for whoever writes into it: for ever, and in a server everybody else with it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        # Before a file is made of it, which a folder refuses and then leaves open.
        os.close(descriptor)
        raise OSError(errno.EINVAL, "this is not a file")
    with os.fdopen(descriptor, "rb") as file:
        return file.read(most_bytes)
