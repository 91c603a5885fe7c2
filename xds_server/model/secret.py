"""Present certificates for connections to engines: the value between the folder and its users."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSecret:
    """Trusted CAs (``authorities``) and, if present, our own certificate and key; all as PEM.

    ``ends_unix_s`` is when the first of the required certificates expires.
    """

    name: str
    authorities: bytes
    chain: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    ends_unix_s: float


Secrets: TypeAlias = Mapping[str, EngineSecret]
"""By name, only usable ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """The present secrets, and what clusters need to know of others.

    ``certified`` are names of secrets that had a certificate for proxies when last readable; None if unknown: then
    all count as such. This keeps clusters unchanged, which Envoy would otherwise warm again, when a server starts
    without access to the folder.
    """

    secrets: Secrets = field(default_factory=dict)
    certified: frozenset[str] | None = None

    def has_certificate(self, name: str) -> bool:
        """Whether proxies identify themselves with this secret."""
        known = self.secrets.get(name)
        if known is not None:
            return known.chain is not None
        return self.certified is None or name in self.certified


NO_CERTIFICATES: Final = Certificates(certified=frozenset())
"""No secrets now or before."""

UNKNOWN_CERTIFICATES: Final = Certificates()
"""For translating policies without access to their certificates."""
