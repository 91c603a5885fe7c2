"""Paths of certificates; separate from their loader, whose import takes 0.1 s."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Paths of certificate, key and the CA bundle for peers.

    Without ``authorities`` peers are not verified.
    """

    certificate: Path
    key: Path
    authorities: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustFiles:
    """Paths of a client's CA bundle and optional certificate and key."""

    authorities: Path
    certificate: Path | None = None
    key: Path | None = None
