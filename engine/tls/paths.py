"""Where certificates are: apart from what reads them, which takes a tenth of a second to load."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Where one end's certificate, its key and the authorities of the other end are.

    Without ``authorities`` the other end proves nothing of itself.
    """

    certificate: Path
    key: Path
    authorities: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustFiles:
    """Where the authorities are that a client trusts, and its certificate and key where it proves itself."""

    authorities: Path
    certificate: Path | None = None
    key: Path | None = None
