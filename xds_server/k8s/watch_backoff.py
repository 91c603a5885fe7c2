"""Retry times for the API server, and the meaning of its refusals. Pure: randomness is an argument."""

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from xds_server.k8s.kube_api import ApiError
from xds_server.model.backoff import ExponentialBackoff

ABSENT_ATTEMPTS: Final = 3
"""A starting server may not know its custom resources yet: believe the third answer."""


class WatchState(StrEnum):
    """Contact state of a list."""

    CONNECTING = "opening"  # no answer yet
    SYNCED = "synced"
    LOST = "lost"  # no or no usable answer
    FORBIDDEN = "forbidden"  # our account may not read it
    ABSENT = "absent"  # the server does not know the resource


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchBackoffPolicy(ExponentialBackoff):
    """Wait times between attempts; ``slow_s``: where an operator must act."""

    first_s: float = 0.25
    most_s: float = 15.0
    slow_s: float = 10.0


class WatchBackoff:
    """Consecutive failures, and the present wait."""

    def __init__(self, policy: WatchBackoffPolicy, rng: random.Random) -> None:
        self._policy = policy
        self._rng = rng
        self.failures = 0
        self.absences = 0

    def reset(self) -> None:
        """Success: the next failure is the first."""
        self.failures = self.absences = 0

    def after(self, error: ApiError) -> tuple[WatchState, float]:
        """Contact state after this failure, and the wait in seconds."""
        self.absences = self.absences + 1 if error.missing else 0
        if error.missing and self.absences >= ABSENT_ATTEMPTS:
            return WatchState.ABSENT, self._spread(self._policy.slow_s)
        if error.status == 403:
            return WatchState.FORBIDDEN, self._spread(self._policy.slow_s)
        return WatchState.LOST, max(self.pause(), error.retry_after_s or 0.0)

    def pause(self) -> float:
        """Wait after one more failure."""
        self.failures += 1
        return self._spread(self._policy.wait_s(self.failures))

    def _spread(self, seconds: float) -> float:
        # Jitter: a returning server must not meet all clients at once.
        return self._rng.uniform(seconds / 2, seconds)
