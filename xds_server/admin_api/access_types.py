"""Who may use the admin port, and every attempt to change something there."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """One attempt to change something: who, from where, what, and the HTTP status of the answer."""

    at_unix_s: float
    by: str
    peer: str
    what: str
    status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLog:
    """The attempts that the server remembers, oldest first."""

    writes: tuple[AuditRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateStatus:
    """The certificate of the server. ``ends`` is a date, ``left_s`` the seconds until then."""

    identities: tuple[str, ...]
    ends: str
    left_s: int
    trouble: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesStatus:
    """The file with the rules of access; ``trouble`` is empty while the server can use it."""

    file: str
    trouble: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessStatus:
    """Certificate and rules of access in force; None where the server has none."""

    certificate: CertificateStatus | None = None
    rules: RulesStatus | None = None
