"""Certificates for connections to engines, as they are now: the value between the folder and what uses them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias


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
