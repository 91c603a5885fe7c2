"""When to ask an API server again, and what its refusals mean. Pure: chance is an argument."""

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from xds_server.k8s.kube_api import ApiError
from xds_server.model.backoff import ExponentialBackoff

ABSENT_ATTEMPTS: Final = 3
"""A server that has just started may not know its custom resources yet: it is believed at the third time."""


class WatchState(StrEnum):
    """How a list stands with the server that holds it."""

    CONNECTING = "opening"  # nothing heard yet
    SYNCED = "in touch"
    LOST = "lost"  # no answer, or none that is of use
    FORBIDDEN = "forbidden"  # our account may not read it
    ABSENT = "absent"  # the server knows no such resource


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchBackoffPolicy(ExponentialBackoff):
    """Waits between tries; ``slow_s`` is the wait where an operator has to help."""

    first_s: float = 0.25
    most_s: float = 15.0
    slow_s: float = 10.0


class WatchBackoff:
    """How often in a row it went wrong, and how long to wait now."""

    def __init__(self, policy: WatchBackoffPolicy, rng: random.Random) -> None:
        self._policy = policy
        self._rng = rng
        self.failures = 0
        self.absences = 0

    def reset(self) -> None:
        """It went well: the next failure is the first."""
        self.failures = self.absences = 0

    def after(self, error: ApiError) -> tuple[WatchState, float]:
        """What this failure says of the contact, and the wait in seconds."""
        self.absences = self.absences + 1 if error.missing else 0
        if error.missing and self.absences >= ABSENT_ATTEMPTS:
            return WatchState.ABSENT, self._spread(self._policy.slow_s)
        if error.status == 403:
            return WatchState.FORBIDDEN, self._spread(self._policy.slow_s)
        return WatchState.LOST, max(self.pause(), error.retry_after_s or 0.0)

    def pause(self) -> float:
        """The wait after one more failure."""
        self.failures += 1
        return self._spread(self._policy.wait_s(self.failures))

    def _spread(self, seconds: float) -> float:
        # A server that comes back should not meet all that lost it in one moment.
        return self._rng.uniform(seconds / 2, seconds)
