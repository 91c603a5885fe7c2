"""How long to wait after failures in a row."""

from dataclasses import dataclass
from typing import Final

_MOST_DOUBLINGS: Final = 64
"""Enough for every pair of limits, and far from where a float overflows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialBackoff:
    """Waits in seconds that double from ``first_s`` up to ``most_s``."""

    first_s: float
    most_s: float

    def wait_s(self, failures: int) -> float:
        """The wait after so many failures in a row, which are at least one."""
        return min(self.most_s, self.first_s * 2.0 ** min(max(0, failures - 1), _MOST_DOUBLINGS))
