"""Engines that are clearly slower than their peers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerState:
    """What has to be remembered of one engine's slowness from one decision to the next."""

    out: bool = False
    slow_since_s: float | None = None
