"""Temporary folder of a lab: deleted at the end or, after a kill, when the next lab opens."""

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PREFIX: Final = "switchgear-lab-"
_LOCK: Final = "in-use"


@contextmanager
def scratch_folder(parent: Path | None = None) -> Iterator[Path]:
    """A folder for the block, in ``parent`` or the default temporary directory; removes leftovers of killed
    labs.
    """
    above = Path(tempfile.gettempdir()) if parent is None else parent
    remove_stale_folders(above)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=above))
    try:
        draft = folder / f"{_LOCK}.draft"
        with draft.open("w") as lock:
            # The kernel releases the lock when our process ends. Taken before the folder is visible.
            fcntl.flock(lock, fcntl.LOCK_EX)
            draft.rename(folder / _LOCK)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_stale_folders(parent: Path) -> None:
    """Remove folders of dead labs; keep those in use."""
    for path in parent.glob(f"{PREFIX}*/{_LOCK}"):
        try:
            with path.open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
        except OSError:
            continue  # in use, another user's, or just removed
