"""Everything that can be seen in an experiment, one frozen value per sort of event.

A history is a file of such events, one JSON object a line (``"event"`` says which). Times ``at_s`` are seconds
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
"""From one sample of each Envoy to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRecord:
    """An engine as the experiment began. ``pool`` is the pool it is an engine of."""

    name: str
    zone: str
    slots: int
    slowness: float
    pool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyRecord:
    """A proxy as the experiment began."""

    name: str
    zone: str
    demand: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentBegan:
    """The first line. ``scenario`` is the whole document, JSON-ready; ``subject`` is who is judged (a folder of
    policies, or an Envoy without a control plane), ``policies`` its text as it was served (empty without one), and
    ``time_scale`` by how much the policies' request times were divided to fit the lab's engines. ``max_wait_s`` is
    what the policies allow a request to wait (lab time). ``at_unix_s`` is the wall clock at ``at_s`` 0.
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
    """A fault may bite from here on. ``id`` is that of its outage, ``fault`` its kind and settings, JSON-ready."""

    event: Literal["fault_began"] = "fault_began"
    at_s: float
    id: str
    fault: Mapping[str, Any]
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultHealed:
    """It is over, or begins to be: from here on the first of its targets may be well."""

    event: Literal["fault_healed"] = "fault_healed"
    at_s: float
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One try of one caller, as the caller saw it; the fields are those of
    ``chaos.history.request_outcomes.RequestOutcome``.

    ``at_s`` is its planned arrival. ``try_number`` is 1 for the first, more for what callers try again by
    themselves; all tries of one question share ``question``. ``refusal`` and ``fallback`` are what the answer's
    headers say.
    """

    event: Literal["request"] = "request"
    at_s: float
    request_id: str
    question: str
    try_number: int = 1
    proxy: str
    streaming: bool
    batch: bool = False
    lag_s: float
    status: int
    reason: OutcomeReason
    first_token_s: float | None
    latency_s: float
    tokens: int
    longest_gap_s: float | None = None
    fallback: str = ""
    refusal: str = ""

    @property
    def ok(self) -> bool:
        """Whether the caller got a whole answer in time."""
        return self.reason is OutcomeReason.OK

    @property
    def ended_at_s(self) -> float:
        return self.at_s + self.latency_s


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One call of one request to one engine, from the engine's own book. ``at_s`` is its arrival there; ``slot_s``
    how long it held a slot (a GPU that stands still hands out none), ``started_at_s`` from when.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySample:
    """What one Envoy said at one moment, by engine: requests in flight, and everything it ever sent there, failed
    connections included; ``ejected`` are those its own outlier detection keeps out, ``unhealthy`` those it was
    told to leave. ``ceiling`` is its limit on requests in flight, None where it has none. ``retries`` it made so
    far and ``refused`` ones it did not make for want of a budget; None where it was not asked.
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
    """An engine's agent changed its judgement (``verdict``: ready, busy, hung, dead, draining, ...)."""

    event: Literal["detected"] = "detected"
    at_s: float
    engine: str
    verdict: str
    evidence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneDecision:
    """One line of the control plane's ledger. ``engine`` is empty where it is of the pool, a zone or a proxy;
    ``kind`` is the ledger's, ``before`` and ``after`` as there. ``out``: from here on the engine gets nothing new
    (True), or is in again (False); None where the line does not say.
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
    """The control plane sent a response (seen on the wire). ``type`` is short: cds, eds, lds, rds, rtds."""

    event: Literal["pushed"] = "pushed"
    at_s: float
    proxy: str
    type: str
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigReply:
    """A proxy answered a response (seen on the wire): ACK, or NACK with the ``error``."""

    event: Literal["answered"] = "answered"
    at_s: float
    proxy: str
    type: str
    nonce: str
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExit:
    """A process of the lab ended that no fault had ended; the experiment says little from here on."""

    event: Literal["gone"] = "gone"
    at_s: float
    process: str
    status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentAborted:
    """The experiment was stopped early; everything was healed."""

    event: Literal["aborted"] = "aborted"
    at_s: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuUsage:
    """Share of one core, in percent, that each part needed while requests arrived; ``machine`` is the share of all
    cores that anybody used, and ``ours`` the part of it that is the experiment's own.
    """

    event: Literal["used"] = "used"
    at_s: float
    processes: Mapping[str, float]
    machine: float
    ours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentEnded:
    """The last line: all there was to see has been written."""

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
