"""What is remembered from one round to the next beside the decisions: states and averages that decide nothing.

Whoever fills one of them says how; here stands only what it holds, so that decisions may carry it along.
"""

from dataclasses import dataclass
from enum import StrEnum


class BreakerPhase(StrEnum):
    """Where a breaker stands."""

    CLOSED = "closed"
    OPEN = "open"
    TRIAL = "trial"


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerState:
    """What has to be remembered of one engine's breaker from one decision to the next.

    ``opens`` counts openings since it was last well for long. ``succeeded`` and ``failed`` are the engine's totals
    at ``since_s``, when the phase or its books began. ``proofs`` are canaries in a row that brought a token since
    then, the newest at ``proof_at_s``. ``failing`` is the rate, 0..1, and ``why`` the sentence that opened it.
    ``boot`` is the engine process all this is about.
    """

    phase: BreakerPhase = BreakerPhase.CLOSED
    since_s: float = 0.0
    until_s: float = 0.0
    opens: int = 0
    succeeded: int = 0
    failed: int = 0
    proofs: int = 0
    proof_at_s: float = 0.0
    failing: float = 0.0
    why: str = ""
    boot: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSample:
    """Calls finished and work held, in two buckets one after another; ``work_s`` is slots in use times seconds.

    ``expected`` is what peers would have finished in that work, each moment of it by what they did then.
    ``done`` is the total of finished calls when the newer bucket began, ``in_use`` the slots at the last look.
    """

    at_s: float
    began_s: float
    done: int
    finished: int = 0
    work_s: float = 0.0
    expected: float = 0.0
    in_use: int = 0
    past_began_s: float | None = None
    past_finished: int = 0
    past_work_s: float = 0.0
    past_expected: float = 0.0

    @property
    def since_s(self) -> float:
        """When the older bucket began."""
        return self.began_s if self.past_began_s is None else self.past_began_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerState:
    """What has to be remembered of one engine's slowness from one decision to the next.

    ``ejected``: it is to leave, since ``since_s``; ``trial``: it is back with a share of its traffic. ``until_s``
    ends either. ``slow_since_s`` is since when it looks slow, None when it does not. ``ejections`` counts how
    often it left since it was last well for long, ``proofs`` looks in a row that showed it as fast as its peers,
    the newest at ``proof_at_s``. ``times`` is how many times slower it was, and ``why`` the sentence.
    """

    ejected: bool = False
    slow_since_s: float | None = None
    trial: bool = False
    since_s: float = 0.0
    until_s: float = 0.0
    ejections: int = 0
    proofs: int = 0
    proof_at_s: float = 0.0
    times: float = 0.0
    why: str = ""
    sample: WorkSample | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlapState:
    """What has to be remembered of an engine's leaving and returning.

    ``at_s`` are its returns of the last minute, oldest first. ``waits`` is how often it had to wait since it was
    last well for a minute. ``well_since_s`` is since when it would be back if it did not have to wait, and
    ``uncut_at_s`` when it was last told that its requests need no longer be cut.
    """

    at_s: tuple[float, ...] = ()
    waits: int = 0
    well_since_s: float | None = None
    uncut_at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Requests per second that one proxy is asked for, the refused ones included, and those it refuses now."""

    interactive_per_s: float
    batch_per_s: float
    sheds_interactive: bool
    sheds_batch: bool
    at_s: float

    @property
    def per_s(self) -> float:
        """Of both classes."""
        return self.interactive_per_s + self.batch_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityEstimate:
    """Averages over the last seconds of one engine's good calls, and the slots it shows to have.

    ``done`` calls ended well and ``busy`` call-seconds were spent on them, over a remembered ``span_s``; ``slots``
    is None while nothing says that the engine cannot fill those it has. ``at_s``: monotonic time of the telemetry
    last folded in; ``looked_at_s`` that of the report.
    """

    done: float = 0.0
    busy: float = 0.0
    span_s: float = 0.0
    at_s: float = 0.0
    slots: float | None = None
    looked_at_s: float = 0.0
