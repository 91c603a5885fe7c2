"""Intervals between rounds."""

from typing import Final

SPACING_S: Final = 0.02
"""Minimum time between two rounds: when a third of a fleet fails, that is a handful of pushes, not hundreds."""

TICK_S: Final = 0.5
"""Maximum time between two rounds: reports expire and cooldowns end without an event."""

TRAFFIC_TICK_S: Final = 0.1
"""The same while proxies report traffic: ceilings and breakers follow it, and ten evaluations a second suffice."""
