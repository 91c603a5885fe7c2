"""Intervals between rounds."""

from typing import Final

SPACING_S: Final = 0.02
"""Minimum time between two rounds: when a third of a fleet fails, that is a handful of pushes, not hundreds."""

TICK_S: Final = 0.5
"""Maximum time between two rounds: reports expire and cooldowns end without an event."""

TRAFFIC_TICK_S: Final = 0.1
"""The same while proxies report traffic: ceilings and breakers follow it, and ten evaluations a second suffice."""

GATHER_REST: Final = 9.0
"""Time without rounds for proxies that come or go, in multiples of the last round: a thousand proxies that connect
are tens of rounds, not hundreds."""

GATHER_MOST_S: Final = 0.5
"""Limit of that time: until the round, newcomers share the admission limits of the last one."""
