"""What is said of one engine at one moment: the seam between whoever judges engines and the control plane.

Today the control plane's own prober fills this value in; an agent beside the engine can fill in the same one.
The control plane reads only this module of the package.
"""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What an engine is worth to a caller now."""

    STARTING = "starting"  # no token has been seen yet
    READY = "ready"  # produces tokens
    BUSY = "busy"  # produces tokens, all slots taken: keep it in
    HUNG = "hung"  # holds requests and produces nothing
    DEAD = "dead"  # does not answer
    DRAINING = "draining"  # finishes what it has, takes nothing new
    DEGRADED = "degraded"  # produces tokens, with evidence of damage

    @property
    def good(self) -> bool:
        """Whether the engine should take new requests."""
        return self in _GOOD

    @property
    def hard(self) -> bool:
        """Whether the evidence is that no token comes out: such an engine leaves whatever the capacity."""
        return self in _HARD


_GOOD = frozenset({Verdict.READY, Verdict.BUSY})
_HARD = frozenset({Verdict.STARTING, Verdict.HUNG, Verdict.DEAD})


class Doubt(StrEnum):
    """A reading that is as likely the judge's own fault when every engine of a pool gives it."""

    REFUSED = "refused"  # up, but says that the question is wrong: model, path, permission
    SILENT = "silent"  # neither answers nor refuses: the way there may be what is broken


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """One judgement of one engine.

    ``pool`` and ``engine`` are the names of the policy. ``observed_at_s`` is the judge's monotonic clock in
    seconds. Counts are None where the source cannot know them. ``evidence`` is one sentence naming the
    reading, the threshold and since when. ``sequence`` grows with each report of a source; 0 means the source
    does not count. ``doubt`` names the reading that would speak against the judge if a whole pool showed it.
    """

    pool: str
    engine: str
    verdict: Verdict
    evidence: str
    observed_at_s: float
    sequence: int = 0
    boot_id: str = ""
    requests_in_flight: int | None = None
    requests_waiting: int | None = None
    kv_cache_usage_ratio: float | None = None
    tokens_per_s: float | None = None
    doubt: Doubt | None = None
