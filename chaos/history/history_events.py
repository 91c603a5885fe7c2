"""All events of an experiment, one frozen value per kind.

A history is a file of such events, one JSON object per line (``"event"`` is the kind). Times ``at_s`` are seconds
from the moment at which the first request may arrive; what happened before is negative. Engines, proxies and the
control plane have the names of ``chaos.scenario.experiment_plan``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from chaos.fake_engine.call_log import CallOutcome as Fate
from chaos.history.request_outcomes import OutcomeReason

FORMAT = 1

SAMPLE_S: Final = 0.1
"""Interval between samples of each Envoy."""

GAP_DIGITS: Final = 4
"""Digits of recorded gaps between tokens: 0.1 ms, which keeps histories of streams short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRecord:
    """An engine at the start of the experiment, with its ``pool``."""

    name: str
    zone: str
    slots: int
    slowness: float
    pool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyRecord:
    """A proxy at the start of the experiment."""

    name: str
    zone: str
    demand: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentBegan:
    """The first line of a history.

    ``scenario`` is the whole document, JSON-ready. ``subject`` is what is tested: a folder of policies, or an
    Envoy without a control plane. ``policies`` is the policy text as served, empty without one. ``time_scale`` is
    the factor by which request times were divided to fit the lab's engines. ``max_wait_s`` is the longest queueing
    time that the policies allow (lab time). ``at_unix_s`` is the wall clock at ``at_s`` 0.
    """

    event: Literal["began"] = "began"
    format: int = FORMAT
    at_s: float = 0.0
    at_unix_s: float
    name: str
    subject: str
    scenario: Mapping[str, Any]
    policies: str
    pool: str
    time_scale: float
    max_wait_s: float
    service_s: Annotated[float, Field(gt=0)]
    rate_per_s: Annotated[float, Field(gt=0)]
    seconds: float
    seed: int
    engines: tuple[EngineRecord, ...]
    proxies: tuple[ProxyRecord, ...]
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultBegan:
    """Start of a fault. ``id`` is that of its outage, ``fault`` its kind and settings, JSON-ready."""

    event: Literal["fault_began"] = "fault_began"
    at_s: float
    id: str
    fault: Mapping[str, Any]
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultHealed:
    """End of a fault: from here on its first target may be healthy."""

    event: Literal["fault_healed"] = "fault_healed"
    at_s: float
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One attempt of one caller, as the caller saw it, with the fields of ``RequestOutcome``.

    ``at_s`` is its planned arrival. ``try_number`` is 1 for the first attempt, more for client retries; all
    attempts of a caller request share ``question``. ``refusal`` and ``fallback`` are from the answer's headers.
    """

    event: Literal["request"] = "request"
    at_s: float
    request_id: str
    question: str
    try_number: int = 1
    proxy: str
    streaming: bool
    batch: bool = False
    group: str = ""
    lag_s: float
    status: int
    reason: OutcomeReason
    first_token_s: float | None
    latency_s: float
    tokens: int
    longest_gap_s: float | None = None
    gaps_s: tuple[float, ...] = ()
    fallback: str = ""
    refusal: str = ""
    session: str = ""

    @property
    def ok(self) -> bool:
        """Whether the caller got a complete answer in time."""
        return self.reason is OutcomeReason.OK

    @property
    def ended_at_s(self) -> float:
        return self.at_s + self.latency_s


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One call of a request to an engine, from the engine's log.

    ``at_s`` is its arrival there; ``slot_s`` how long it held a slot (a stopped GPU gives out none), from
    ``started_at_s``. ``prefill``: a side-car's, for the KV cache of the prompt alone. ``cached_tokens`` of the
    ``prompt_tokens`` were in the prefix cache; both are 0 if the prompt was not computed here.
    """

    event: Literal["attempt"] = "attempt"
    at_s: float
    engine: str
    request_id: str
    number: int
    streaming: bool
    fate: Fate
    reason: str
    closed_at_s: float
    started_at_s: float | None
    slot_s: float
    tokens_generated: int
    tokens_sent: int
    prefill: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySample:
    """One sample of an Envoy's counters.

    By engine: requests in flight, and all calls ever sent, including failed connections. ``ejected`` are engines
    ejected by its outlier detection, ``unhealthy`` those marked by configuration. ``ceiling`` is its limit on
    requests in flight; None without one. ``retries`` so far, and ``refused`` retries beyond the retry budget; None
    if not sampled.
    """

    event: Literal["proxy_sample"] = "proxy_sample"
    at_s: float
    proxy: str
    in_flight: Mapping[str, int]
    sent: Mapping[str, int]
    ejected: tuple[str, ...] = ()
    unhealthy: tuple[str, ...] = ()
    ceiling: float | None = None
    retries: int | None = None
    refused: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDetection:
    """An agent's new verdict (``verdict``: ready, busy, hung, dead, draining, ...)."""

    event: Literal["detected"] = "detected"
    at_s: float
    engine: str
    verdict: str
    evidence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneDecision:
    """One line of the control plane's ledger.

    ``engine`` is empty for decisions on the pool, a zone or a proxy; ``kind``, ``before`` and ``after`` are the
    ledger's. ``out``: the engine is ejected (True) or back in rotation (False) from here on; None for other lines.
    """

    event: Literal["decided"] = "decided"
    at_s: float
    kind: str
    engine: str
    subject: str
    before: str
    after: str
    evidence: str
    rule: str = ""
    out: bool | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigPush:
    """A response of the control plane, seen on the wire. ``type`` is short: cds, eds, lds, rds, rtds."""

    event: Literal["pushed"] = "pushed"
    at_s: float
    proxy: str
    type: str
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigReply:
    """A proxy's reply to a response, seen on the wire: ACK, or NACK with the ``error``."""

    event: Literal["answered"] = "answered"
    at_s: float
    proxy: str
    type: str
    nonce: str
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExit:
    """Unexpected exit of a lab process; later events mean little."""

    event: Literal["gone"] = "gone"
    at_s: float
    process: str
    status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentAborted:
    """Early stop of the experiment; everything was healed."""

    event: Literal["aborted"] = "aborted"
    at_s: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuUsage:
    """CPU use while requests arrived: of each part, in percent of one core.

    ``machine`` is the used share of all cores, ``ours`` the part of it used by the experiment.
    """

    event: Literal["used"] = "used"
    at_s: float
    processes: Mapping[str, float]
    machine: float
    ours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentEnded:
    """The last line of a complete history."""

    event: Literal["ended"] = "ended"
    at_s: float


HistoryEvent = (
    ExperimentBegan
    | FaultBegan
    | FaultHealed
    | RequestRecord
    | AttemptRecord
    | ProxySample
    | EngineDetection
    | ControlPlaneDecision
    | ConfigPush
    | ConfigReply
    | ProcessExit
    | ExperimentAborted
    | CpuUsage
    | ExperimentEnded
)
