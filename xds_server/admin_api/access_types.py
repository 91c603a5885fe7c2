"""Types for admin access: certificate, rules, and the audit log of changes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """One attempted change: author, origin, action, and HTTP status of the answer."""

    at_unix_s: float
    by: str
    peer: str
    what: str
    status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLog:
    """Attempts stored by the server, oldest first."""

    writes: tuple[AuditRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateStatus:
    """Server certificate. ``ends``: expiry date; ``left_s``: seconds until then."""

    identities: tuple[str, ...]
    ends: str
    left_s: int
    trouble: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesStatus:
    """File with the access rules; ``trouble`` is empty while the file is usable."""

    file: str
    trouble: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessStatus:
    """Certificate and access rules in force; None if not configured."""

    certificate: CertificateStatus | None = None
    rules: RulesStatus | None = None
