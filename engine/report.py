"""Report on one engine: the interface between agent or prober and control plane.

Agent and prober fill in the same value; ``source`` tells them apart. Agents send it as
``proto/engine_report.proto``, converted by ``report_wire``.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

LONGEST_DRAIN_S: Final = 24 * 3600.0
"""Longest deadline of a drain."""

PREFILL_READING: Final = "prefill"
"""``Evidence.reading`` of an engine that is hung while a prefill may be running."""

PROBE_READING: Final = "probe"
PROBE_THRESHOLD: Final = "a token"
"""``Evidence.reading`` and ``.threshold`` of an engine that answered a canary without a token."""

STANDSTILL_READING: Final = "standstill"
"""``Evidence.reading`` of an engine that stands still longer than its recent prompts explain, but not yet hung."""


class Verdict(StrEnum):
    """State of an engine for callers."""

    STARTING = "starting"  # no token yet
    READY = "ready"  # produces tokens
    BUSY = "busy"  # produces tokens, all slots in use: stays in rotation
    HUNG = "hung"  # requests in flight, no tokens
    DEAD = "dead"  # does not answer
    DRAINING = "draining"  # finishes its requests, accepts no new ones
    DEGRADED = "degraded"  # produces tokens, with evidence of damage
    MISCONFIGURED = "misconfigured"  # up, but refuses the probe: key, model or path
    PAUSED = "paused"  # paused or asleep by order: no token until it resumes

    @property
    def good(self) -> bool:
        """Whether the engine should take new requests."""
        return self in _GOOD

    @property
    def hard(self) -> bool:
        """Whether it produces no token: ejected regardless of the capacity floor."""
        return self in _HARD


_GOOD = frozenset({Verdict.READY, Verdict.BUSY})
_HARD = frozenset({Verdict.STARTING, Verdict.HUNG, Verdict.DEAD, Verdict.MISCONFIGURED, Verdict.PAUSED})


class Doubt(StrEnum):
    """A reading that is likely the prober's own fault if a whole pool shows it."""

    REFUSED = "refused"  # up, but refuses the probe: key, model, path, certificate
    SILENT = "silent"  # no answer: the network path may be broken


class ReportSource(StrEnum):
    """Source of a verdict."""

    PROBE = "probe"  # prober of the control plane, over the network
    AGENT = "agent"  # agent next to the engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One reason for a verdict: reading, threshold and age.

    ``sentence`` states it in words. ``age_s`` counts back from the time of the report.
    """

    reading: str
    sentence: str
    threshold: str = ""
    age_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Median and 99th percentile of a time, in seconds, over the last window."""

    p50_s: float
    p99_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryResults:
    """Results of canaries: completions of one token.

    ``in_row``: successes in a row, 0 after a failure. ``at_s``: time of the last success on the holder's monotonic
    clock; ``took_s``: its duration.
    """

    in_row: int
    at_s: float
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuVitals:
    """One GPU or MIG slice of the engine; None if the driver does not report it.

    ``throttled``: reasons in words. ``xids``: those still remembered, newest first.
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
    """The GPUs of an engine as one unit.

    ``action`` is that of the worst GPU: none, watch, degrade, drain or eject; "" if unknown. ``statement`` states
    what could be read.
    """

    action: str = ""
    statement: str = ""
    gpus: tuple[GpuVitals, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequest:
    """A drain of the engine; ``deadline_in_s`` seconds are left, None without a deadline."""

    deadline_in_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGaps:
    """Time between tokens of all requests of an engine: a histogram since it started.

    ``counts`` are gaps up to each of the ascending ``bounds_s``, and one more: all gaps.
    """

    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]
    sum_s: float

    @property
    def total(self) -> int:
        """All gaps."""
        return self.counts[-1]

    def within(self, limit_s: float) -> float:
        """Gaps up to ``limit_s``, interpolated in a bucket; those beyond the last bound are longer."""
        low_s, below = 0.0, 0
        for bound_s, count in zip(self.bounds_s, self.counts, strict=False):
            if limit_s < bound_s:
                return below + (count - below) * (limit_s - low_s) / (bound_s - low_s)
            low_s, below = bound_s, count
        return below

    def since(self, before: "TokenGaps") -> "TokenGaps | None":
        """Gaps after ``before``; None if the engine restarted between, or counts by other bounds."""
        if before.bounds_s != self.bounds_s or any(
            now < then for now, then in zip(self.counts, before.counts, strict=True)
        ):
            return None
        return TokenGaps(
            bounds_s=self.bounds_s,
            counts=tuple(now - then for now, then in zip(self.counts, before.counts, strict=True)),
            sum_s=max(0.0, self.sum_s - before.sum_s),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenWork:
    """What an engine has done since it started, by its own counters: tokens, and ``finished`` requests."""

    prompt_tokens: int
    generation_tokens: int
    finished: int

    def since(self, before: "TokenWork") -> "TokenWork | None":
        """The work after ``before``; None if a counter fell, so that the engine restarted."""
        grown = TokenWork(
            prompt_tokens=self.prompt_tokens - before.prompt_tokens,
            generation_tokens=self.generation_tokens - before.generation_tokens,
            finished=self.finished - before.finished,
        )
        return grown if min(grown.prompt_tokens, grown.generation_tokens, grown.finished) >= 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTotals:
    """Counters of an engine that grow while it runs; None: it does not report them."""

    gaps: TokenGaps | None = None
    work: TokenWork | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """One verdict on one engine.

    ``pool`` and ``engine`` are names in policies; an agent leaves them empty. ``observed_at_s`` is on the holder's
    monotonic clock. Counts are None if unknown. ``evidence`` is one sentence with reading, threshold and age;
    ``reasons`` lists all, the deciding one first. ``sequence`` grows with each report of a ``boot_id``; 0: the
    source does not count. ``doubt`` names a reading that is likely the source's fault if a whole pool shows it.
    ``revision`` is of the engine's software. ``canary`` is None until one succeeded. ``ranks`` names the
    data-parallel ranks, empty if there is one; ``hung_ranks`` those of them that hang. ``adapters``: names of the
    LoRA adapters that the engine serves, None if unknown. ``token_gaps`` and ``token_work`` are for the wire only:
    ``decode`` leaves them out, since they always differ.
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
    ranks: tuple[str, ...] = ()
    hung_ranks: tuple[str, ...] = ()
    adapters: tuple[str, ...] | None = None
    token_gaps: TokenGaps | None = None
    token_work: TokenWork | None = None

    @property
    def fails_probe(self) -> bool:
        """Whether the engine answers canaries without a token, such as with 500."""
        return self.verdict is Verdict.DEGRADED and any(
            (one.reading, one.threshold) == (PROBE_READING, PROBE_THRESHOLD) for one in self.reasons
        )

    @property
    def working_share(self) -> float:
        """Share of data-parallel ranks that do not hang, 0..1; 1 for an engine without ranks."""
        return 1.0 if not self.ranks else max(0, len(self.ranks) - len(self.hung_ranks)) / len(self.ranks)
