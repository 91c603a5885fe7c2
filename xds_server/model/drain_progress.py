"""Progress of a drain over the proxies."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainProgress:
    """Proxies that are served an engine's pool, and how many acknowledged that it takes no new requests."""

    proxies_total: int
    proxies_acknowledged: int
