"""What versions say, beside the digests that their files have: a table from the one to the other, in one file.

Files of versions name policies by a digest over names and texts, as they always did, so that an earlier server
which takes them up finds what it kept. It tells versions apart by that; this one by what they say, whatever files
are called and comments say. A table that is damaged, foreign or gone costs this: what was applied then ends at a
restart beside files in which only comments changed.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import structlog
from pydantic import BaseModel, ConfigDict

from xds_server.rollout.history.policy_version import PolicyVersion
from xds_server.state.atomic_file import remove_leftovers, write_atomically
from xds_server.state.versioned_file import StoreError, VersionedFile

FILE_NAME: Final = "digests.json"
FORMAT: Final = "switchgear-digests/1"
MAX_BYTES: Final = 1024 * 1024
"""Two lines for each version: what is larger is not ours."""

_log = structlog.get_logger()


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    says: dict[str, str]


_FILE: Final = VersionedFile(format=FORMAT, content=_Table, max_bytes=MAX_BYTES)


def digests_by_former(versions: Iterable[PolicyVersion]) -> Mapping[str, str]:
    """The digest of what is said, by that of names and texts, for all that these versions name."""
    return {
        former: digest
        for one in versions
        for former, digest in ((one.former, one.digest), (one.beside_former, one.beside))
        if former
    }


def write(folder: Path, says: Mapping[str, str]) -> None:
    """Replace the table in one step; ``OSError`` when it cannot be."""
    write_atomically(folder / FILE_NAME, _FILE.encode({"says": dict(says)}))


def read(folder: Path) -> Mapping[str, str]:
    """The table of this folder; empty, with a word in the log, where it cannot be believed."""
    path = folder / FILE_NAME
    remove_leftovers(path)
    try:
        table = _FILE.read(path)
    except StoreError as error:
        _log.warning("history.skipped", file=str(path), reason=str(error))
        table = None
    return MappingProxyType({} if table is None else table.says)
