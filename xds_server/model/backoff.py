"""Exponential backoff after consecutive failures."""

from dataclasses import dataclass
from typing import Final

_MOST_DOUBLINGS: Final = 64
"""Enough for every pair of limits, and far below float overflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialBackoff:
    """Waits in seconds that double from ``first_s`` to ``most_s``."""

    first_s: float
    most_s: float

    def wait_s(self, failures: int) -> float:
        """The wait after this many consecutive failures, at least one."""
        return min(self.most_s, self.first_s * 2.0 ** min(max(0, failures - 1), _MOST_DOUBLINGS))
