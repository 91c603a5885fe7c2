"""A file that maps the digests in version files to content digests.

Version files identify policies by a digest over names and texts, so that an earlier server that reads them finds
its own. This server compares by content, whatever files are called and comments say. Without a valid table, a
version applied then ends at a restart if only comments of the files changed.
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
"""Two lines per version; larger files are not ours."""

_log = structlog.get_logger()


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    says: dict[str, str]


_FILE: Final = VersionedFile(format=FORMAT, content=_Table, max_bytes=MAX_BYTES)


def digests_by_former(versions: Iterable[PolicyVersion]) -> Mapping[str, str]:
    """Content digests by digest over names and texts, for all policies that these versions name."""
    return {
        former: digest
        for one in versions
        for former, digest in ((one.former, one.digest), (one.beside_former, one.beside))
        if former
    }


def write(folder: Path, says: Mapping[str, str]) -> None:
    """Replace the table in one step; raises ``OSError``."""
    write_atomically(folder / FILE_NAME, _FILE.encode({"says": dict(says)}))


def read(folder: Path) -> Mapping[str, str]:
    """The table of this folder; empty, with a log line, if it cannot be trusted."""
    path = folder / FILE_NAME
    remove_leftovers(path)
    try:
        table = _FILE.read(path)
    except StoreError as error:
        _log.warning("history.skipped", file=str(path), reason=str(error))
        table = None
    return MappingProxyType({} if table is None else table.says)
