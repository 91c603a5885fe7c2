"""A policy version: what was accepted, when, by which author and why."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Final

from xds_server.admin_api.version_types import VersionStatus

MAX_TEXT_BYTES: Final = 16 * 1024 * 1024
"""All texts of a version together; more is not sent over the admin port."""

MAX_COMMENT: Final = 500
"""Characters of an author or a reason."""

MAX_NAME: Final = 4096
"""Characters of a file name; file systems have no longer paths."""


class VersionSource(StrEnum):
    """How a version reached the server."""

    FILES = "files"
    KUBERNETES = "kubernetes"
    APPLIED = "applied"
    ROLLBACK = "rollback"


ORDERED: Final = frozenset({VersionSource.APPLIED, VersionSource.ROLLBACK})
"""Sources with an author: such a version replaces the files until those change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    """One set of policies that was served; ``texts`` by file name.

    ``digest`` covers the content, whatever the files are called, so that equal versions have the same. A version
    stored by an earlier Switchgear keeps its digest of names and texts; ``former`` is that digest, where both are
    known.

    ``by`` is the author, if known: the value of --by, else the name of the source. For an applied version,
    ``beside`` is the digest of the files that it replaces, with a ``beside_former``; ``restores`` is the number of
    the version that a rollback restored, 0 for others.
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
        """Origin, in words: ``applied by ann``."""
        match self.source:
            case VersionSource.APPLIED:
                return f"applied by {self.by}"
            case VersionSource.ROLLBACK:
                return f"rolled back to version {self.restores} by {self.by}"
            case _:
                return f"from {'the cluster' if self.source is VersionSource.KUBERNETES else 'files'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Origin of texts that were applied."""

    source: VersionSource
    by: str = ""
    reason: str = ""
    restores: int = 0


def digest_of(texts: Mapping[str, str]) -> str:
    """A hash over names and contents of texts: the digest of applied versions in earlier releases."""
    hashed = blake2b(digest_size=16)
    for name in sorted(texts):
        for part in (name, texts[name]):
            data = part.encode(errors="surrogatepass")
            hashed.update(len(data).to_bytes(8) + data)
    return hashed.hexdigest()


def version_status(version: PolicyVersion, *, serving: bool) -> VersionStatus:
    """The version as the admin port returns it."""
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
