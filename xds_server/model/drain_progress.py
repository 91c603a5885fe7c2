"""DOCSTRING NEEDED."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainProgress:
    """Proxies that are served an engine's pool, and those of them that have confirmed it takes nothing new."""

    proxies_total: int
    proxies_acknowledged: int
