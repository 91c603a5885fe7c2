"""A version of the policies: what was accepted, when, by whom and why."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Final

from xds_server.admin_api.version_types import VersionStatus

MAX_TEXT_BYTES: Final = 16 * 1024 * 1024
"""Of all texts of a version together; what is larger is not sent over the admin port."""

MAX_COMMENT: Final = 500
"""Characters of a name or a reason."""

MAX_NAME: Final = 4096
"""Characters of the name of a file; no file system has longer paths."""


class VersionSource(StrEnum):
    """How a version came to the server."""

    FILES = "files"
    KUBERNETES = "kubernetes"
    APPLIED = "applied"
    ROLLBACK = "rollback"


ORDERED: Final = frozenset({VersionSource.APPLIED, VersionSource.ROLLBACK})
"""Sources that somebody has to name: such a version stands beside the files until those change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    """One set of policies that was served; ``texts`` by file name.

    ``digest`` is of what they say, whatever their files are called, so that versions which say the same have the
    same. One that an earlier version of Switchgear kept has another, of names and texts, and keeps it; ``former``
    is that one, where both are known.

    ``by`` is who brought it as far as that is known: what was given with --by, else the name of the source. For
    one that somebody applied, ``beside`` is the digest of the files that it stands in place of, with a
    ``beside_former``; ``restores`` is the number of the version that a rollback brought back, 0 for others.
    """

    number: int
    digest: str
    at_unix_s: float
    source: VersionSource
    by: str
    texts: Mapping[str, str]
    reason: str = ""
    beside: str = ""
    restores: int = 0
    former: str = ""
    beside_former: str = ""

    @property
    def how(self) -> str:
        """Who brought it, in words: ``ann applied it``."""
        match self.source:
            case VersionSource.APPLIED:
                return f"{self.by} applied it"
            case VersionSource.ROLLBACK:
                return f"{self.by} rolled back to version {self.restores}"
            case _:
                return f"the {'cluster says' if self.source is VersionSource.KUBERNETES else 'files say'} so"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What comes with texts that somebody wants served."""

    source: VersionSource
    by: str = ""
    reason: str = ""
    restores: int = 0


def digest_of(texts: Mapping[str, str]) -> str:
    """A hash over the names and contents of texts: the digest that versions had which somebody applied, once."""
    hashed = blake2b(digest_size=16)
    for name in sorted(texts):
        for part in (name, texts[name]):
            data = part.encode(errors="surrogatepass")
            hashed.update(len(data).to_bytes(8) + data)
    return hashed.hexdigest()


def version_status(version: PolicyVersion, *, serving: bool) -> VersionStatus:
    """The version as the admin port answers it."""
    return VersionStatus(
        number=version.number,
        digest=version.digest,
        at_unix_s=version.at_unix_s,
        source=version.source.value,
        by=version.by,
        reason=version.reason,
        restores=version.restores,
        files=len(version.texts),
        size_bytes=sum(len(text.encode(errors="surrogatepass")) for text in version.texts.values()),
        serving=serving,
    )
