"""The folder of a lab that nobody wants to keep: gone at the end or, if we are killed, when the next one opens."""

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
    """A folder for the block, below ``parent`` or where temporary files are; leftovers of killed labs go first."""
    above = Path(tempfile.gettempdir()) if parent is None else parent
    remove_stale_folders(above)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=above))
    try:
        draft = folder / f"{_LOCK}.draft"
        with draft.open("w") as lock:
            # The kernel lets go of it when we end, however that comes about. Held before it can be seen.
            fcntl.flock(lock, fcntl.LOCK_EX)
            draft.rename(folder / _LOCK)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_stale_folders(parent: Path) -> None:
    """Remove the folders of labs that are no more; one that is in use is left alone."""
    for path in parent.glob(f"{PREFIX}*/{_LOCK}"):
        try:
            with path.open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
        except OSError:
            continue  # in use, somebody else's, or just gone
