"""Certificates for connections to engines, as they are now: the value between the folder and what uses them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSecret:
    """Whom to trust (``authorities``) and, where both are there, how to prove oneself; all as PEM.

    ``ends_unix_s`` is when the first of the certificates expires that has to hold.
    """

    name: str
    authorities: bytes
    chain: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    ends_unix_s: float


Secrets: TypeAlias = Mapping[str, EngineSecret]
"""By name, only those that can be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """The secrets there are, and of others what clusters are made of.

    ``certified`` are names of secrets that had a certificate for proxies when they could last be read; None where
    nothing is known of any, and each is taken for such. It keeps a cluster as it is, which Envoy would otherwise
    warm anew, when a server starts beside a folder that it cannot read.
    """

    secrets: Secrets = field(default_factory=dict)
    certified: frozenset[str] | None = None

    def has_certificate(self, name: str) -> bool:
        """Whether proxies prove who they are with this secret."""
        known = self.secrets.get(name)
        if known is not None:
            return known.chain is not None
        return self.certified is None or name in self.certified


NO_CERTIFICATES: Final = Certificates(certified=frozenset())
"""There are none, and there were none."""

UNKNOWN_CERTIFICATES: Final = Certificates()
"""For who translates policies far from the certificates they name."""
