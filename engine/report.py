"""What is said of one engine at one moment: the seam between whoever judges engines and the control plane.

The agent beside an engine and the control plane's own prober fill in the same value; ``source`` says which did.
On the way from the agent it travels as ``proto/engine_report.proto``; ``report_wire`` turns one into the other.
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


class ReportSource(StrEnum):
    """Who judged."""

    PROBE = "probe"  # the control plane, by asking the engine over the network
    AGENT = "agent"  # the process beside the engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One reason for a verdict: the reading, what it was held against, and since how many seconds that was so.

    ``sentence`` says all of it for people. ``age_s`` is counted back from the moment of the report.
    """

    reading: str
    sentence: str
    threshold: str = ""
    age_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Median and 99th percentile of a time, in seconds, over the judge's last window."""

    p50_s: float
    p99_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryResults:
    """The one-token completions that the judge asks an engine for: proof by work, whatever else is said of it.

    ``in_row`` of the newest brought their token, 0 when the last one did not. ``at_s`` is when the last one that
    did came, on the monotonic clock of whoever holds the value, and ``took_s`` how many seconds it took.
    """

    in_row: int
    at_s: float
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuVitals:
    """One GPU or MIG slice of the engine; None where the driver does not say.

    ``throttled`` are reasons in words; ``xids`` those not forgotten yet, newest first.
    """

    rank: int
    uuid: str = ""
    name: str = ""
    temperature_c: int | None = None
    power_w: float | None = None
    utilisation_percent: int | None = None
    sm_clock_mhz: int | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    throttled: tuple[str, ...] = ()
    xids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSummary:
    """The GPUs of an engine, which are one unit: ``action`` is what the worst of them asks for.

    ``action`` is one of none, watch, degrade, drain, eject, or "" where the judge does not say; ``statement`` says
    what is known of them at all.
    """

    action: str = ""
    statement: str = ""
    gpus: tuple[GpuVitals, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequest:
    """The engine was told to drain; ``deadline_in_s`` seconds are left, None when no deadline was set."""

    deadline_in_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """One judgement of one engine.

    ``pool`` and ``engine`` are the names of the policy; an agent knows neither and leaves them empty.
    ``observed_at_s`` is the monotonic clock, in seconds, of whoever holds the value. Counts are None where the
    source cannot know them. ``evidence`` is one sentence naming the reading, the threshold and since when, and
    ``reasons`` are all of them, the deciding one first. ``sequence`` grows with each report of a ``boot_id``;
    0 means the source does not count. ``doubt`` names the reading that would speak against the judge if a whole
    pool showed it. ``revision`` is of the engine's software. ``canary`` is None until one brought a token.
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
    source: ReportSource = ReportSource.PROBE
    reasons: tuple[Evidence, ...] = ()
    slots: int | None = None
    time_to_first_token: Quantiles | None = None
    time_per_output_token: Quantiles | None = None
    model: str = ""
    revision: str = ""
    gpu: GpuSummary | None = None
    drain: DrainRequest | None = None
    canary: CanaryResults | None = None
