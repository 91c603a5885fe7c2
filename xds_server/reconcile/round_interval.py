"""How closely rounds follow each other."""

from typing import Final

SPACING_S: Final = 0.02
"""Shortest time between two rounds: when a third of a fleet fails, that is a handful of pushes, not hundreds."""

TICK_S: Final = 0.5
"""Longest time between two rounds: reports age and cooldowns end without anyone saying so."""

TRAFFIC_TICK_S: Final = 0.1
"""The same while proxies report traffic: ceilings and breakers follow it, and ten looks a second are enough."""
