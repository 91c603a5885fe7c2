"""What versions say, beside the digests that their files have: a table from the one to the other, in one file.

Files of versions name policies by a digest over names and texts, as they always did, so that an earlier server
which takes them up finds what it kept. It tells versions apart by that; this one by what they say, whatever files
are called and comments say. A table that is damaged, foreign or gone costs this: what was applied then ends at a
restart beside files in which only comments changed.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from engine.regular_file import content
from xds_server.history.version import Version
from xds_server.state.whole_file import of_another_version, sweep, write_whole

FILE_NAME: Final = "digests.json"
FORMAT: Final = "switchgear-digests/1"
MAX_BYTES: Final = 1024 * 1024
"""Two lines for each version: what is larger is not ours."""

_log = structlog.get_logger()


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    format: str
    says: dict[str, str]


def said(versions: Iterable[Version]) -> Mapping[str, str]:
    """The digest of what is said, by that of names and texts, for all that these versions name."""
    return {
        former: digest
        for one in versions
        for former, digest in ((one.former, one.digest), (one.beside_former, one.beside))
        if former
    }


def write(folder: Path, says: Mapping[str, str]) -> None:
    """Replace the table in one step; ``OSError`` when it cannot be."""
    write_whole(folder / FILE_NAME, json.dumps({"format": FORMAT, "says": dict(says)}, indent=0).encode())


def read(folder: Path) -> Mapping[str, str]:
    """The table of this folder; empty, with a word in the log, where it cannot be believed."""
    path = folder / FILE_NAME
    sweep(path)
    try:
        text = content(path, MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise ValueError(f"larger than {MAX_BYTES} bytes: not written by Switchgear")
        table = _Table.model_validate_json(text)
        if table.format != FORMAT:
            raise ValueError(of_another_version(table.format, FORMAT))
    except FileNotFoundError:
        return MappingProxyType({})
    except ValidationError:
        reason = "not written by Switchgear, or cut off"
    except (OSError, ValueError) as error:
        reason = str(error)
    else:
        return MappingProxyType(table.says)
    _log.warning("history.skipped", file=str(path), reason=reason)
    return MappingProxyType({})
