"""The state of a running server: proxies, engines, pools, policies, events and orders.

Ages are seconds at the moment of the answer. ``None`` means unknown, or that it does not apply.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, TypeAlias

from pydantic import Field

from engine.report import DrainRequest, Evidence, GpuSummary, Quantiles


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowEngineStatus:
    """An engine that shadow mode would have ejected; ``capacity_percent`` is its share of the pool."""

    pool: str
    engine: str
    reason: str
    times: int
    out_s: float
    failed: int
    succeeded: int
    capacity_percent: float
    out_now: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowPoolStatus:
    """Requests that a ceiling in shadow mode would have refused, by estimate."""

    pool: str
    reason: str
    over_s: float
    refused: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowStatus:
    """What decisions in shadow mode would have done since the server started."""

    engines: tuple[ShadowEngineStatus, ...]
    pools: tuple[ShadowPoolStatus, ...]


class SyncState(StrEnum):
    """Whether a proxy has what it should have of one type."""

    SYNCED = "SYNCED"  # it acknowledged the newest version
    STALE = "STALE"  # it has been sent a newer version and has not answered yet
    NACK = "NACK"  # it refused the newest version and keeps the one before


SyncStateName: TypeAlias = Annotated[SyncState | str, Field(union_mode="left_to_right")]
"""A ``SyncState``, or one that only a newer server knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedResource:
    """A resource that a proxy refused: its place in the policies, and the error message of Envoy."""

    name: str
    version: str
    origins: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeStatus:
    """One resource type of one proxy; ``age_s`` is the time in this state."""

    type: str
    state: SyncStateName
    age_s: float
    version: str
    resources: int
    refused: tuple[RefusedResource, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyStatus:
    """One connected proxy. ``protocol`` is ``delta`` or ``sotw``; empty ``pools`` means all pools."""

    node: str
    zone: str
    role: str
    pools: tuple[str, ...]
    peer: str
    protocol: str
    connected_s: float
    types: tuple[TypeStatus, ...]
    traffic: tuple["ProxyPoolStatus", ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyPoolStatus:
    """The traffic of one proxy to one pool, and its ceilings by priority class.

    ``shuns`` are admitted engines that get nothing from it: Envoy's own ejections.
    """

    pool: str
    arrivals_per_s: float
    shed_per_s: float
    retries_per_s: float
    in_flight: int
    ceiling_interactive: int | None
    ceiling_batch: int | None
    telemetry_age_s: float | None
    shuns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStatus:
    """The agent of one engine. ``covering``: its reports replace the prober; ``trouble``: why it is not connected.

    ``clock_ahead_s`` compares its clock with the server's, at connect. It and the dates of the certificate are
    None where the agent does not report them.
    """

    authority: str
    connected: bool
    covering: bool
    boot_id: str
    trouble: str
    clock_ahead_s: float | None = None
    certificate_begins_unix_s: float | None = None
    certificate_ends_unix_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """One engine: the last report of it, its source, and the decisions.

    ``verdict``, ``source`` and ``report_age_s`` are None before the first report. ``address`` is empty while a
    host name is unresolved; ``agent`` is None where the policy declares none. ``ejector`` is the decision that
    would eject it, ``floor`` that the capacity floor keeps it admitted. ``shadow`` is its health if decisions in
    shadow mode were enforced, ``order`` the operator's order. ``standing`` is the state of its pod. Figures of
    proxies are None where no proxy reports any: ``in_flight``, ``error_percent`` of the last ``window_calls``,
    ``done_per_s``, ``service_s``. ``shunned_by`` are proxies whose Envoy ejected it.
    """

    pool: str
    engine: str
    address: str
    port: int
    zone: str
    verdict: str | None
    evidence: str
    report_age_s: float | None
    health: str | None
    reason: str
    health_age_s: float | None
    requests_in_flight: int | None
    requests_waiting: int | None
    source: str | None = None
    agent: AgentStatus | None = None
    reasons: tuple[Evidence, ...] = ()
    kv_cache_usage_ratio: float | None = None
    tokens_per_s: float | None = None
    time_to_first_token: Quantiles | None = None
    time_per_output_token: Quantiles | None = None
    model: str = ""
    revision: str = ""
    gpu: GpuSummary | None = None
    drain: DrainRequest | None = None
    ejector: str | None = None
    floor: bool = False
    traffic_percent: float = 100.0
    cut: bool = False
    returns: str = ""
    until_in_s: float | None = None
    shadow: str | None = None
    shadow_reason: str = ""
    order: str | None = None
    standing: str = "present"
    standing_reason: str = ""
    in_flight: int | None = None
    error_percent: float | None = None
    window_calls: int | None = None
    done_per_s: float | None = None
    service_s: float | None = None
    slots: float | None = None
    shunned_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyProblem:
    """One error in the policy files; ``place`` is ``file:line:column``."""

    code: str
    place: str
    path: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoliciesStatus:
    """The policy files, and the policies in force.

    ``state`` is that of the files: ``accepted``, ``refused`` (see ``errors``) or ``held`` (see ``held``).
    ``serving_digest`` is of the policies in force, which are the last accepted ones; ``stale`` is true while
    those come from the last run of the server. ``source`` is ``files`` or ``kubernetes``. ``lost_s`` is the time
    without contact, by the plural of the Kubernetes kind.
    """

    state: str
    digest: str
    serving_digest: str
    stale: bool
    age_s: float
    pools: tuple[str, ...]
    routes: tuple[str, ...]
    errors: tuple[PolicyProblem, ...] = ()
    held: str = ""
    source: str = "files"
    lost_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceStatus:
    """One resource of a snapshot, without its content."""

    type: str
    name: str
    version: str
    size_bytes: int
    origins: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotStatus:
    """The resources of proxies of one zone and role."""

    zone: str
    role: str
    resources: tuple[ResourceStatus, ...]


class FileDefect(StrEnum):
    """The defect of a file that trust or a restart depends on."""

    UNUSABLE = "unusable"  # what it held before stays in use; a token is nobody's
    ENDS = "ends"  # soon, and nobody has renewed it
    ENDED = "ended"
    OPEN = "open"  # others than its owner may read it
    WITHHELD = "withheld"  # some proxies are not sent it, for they did not prove who they are
    UNWRITTEN = "unwritten"  # the disk refuses it
    REFUSES = "refuses"  # proxies that come all the time; as meant, or the rules forget them


FileDefectName: TypeAlias = Annotated[FileDefect | str, Field(union_mode="left_to_right")]
"""A ``FileDefect``, or one that only a newer server knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProblem:
    """A problem with a file; ``what`` is certificate, rules, token, secret, or state (what a restart begins with).

    ``sentence`` describes the problem and never quotes the file; ``ends_in_s`` is negative after the end.
    """

    what: str
    defect: FileDefectName
    file: str
    sentence: str
    age_s: float = 0.0
    ends_in_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBackResource:
    """A resource that proxies should have and do not get, because one of them refused it.

    ``refused_by`` names the first of ``refusals`` proxies; ``age_s`` is None where an earlier run was refused.
    ``on_content_before``, ``on_nothing`` and ``on_trial`` count proxies by what they have instead. A proxy on
    trial gets the resource again, to find out which proxies refuse it.
    """

    type: str
    name: str
    version: str
    origins: tuple[str, ...]
    refused_by: tuple[str, ...]
    refusals: int
    age_s: float | None
    reason: str
    on_content_before: int
    on_nothing: int
    on_trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether the server serves proxies, and the reason."""

    ready: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStatus:
    """One event of the ledger.

    ``place`` is the ``file:line`` that set the field ``rule``, or names the default. ``until_in_s`` is the latest
    time of the next check, in seconds from the answer. One event stands for ``times`` equal transitions, the
    first of them ``first_age_s`` ago. ``requests`` are its newest failed ones (``x-request-id``).
    """

    number: int
    at_unix_s: float
    age_s: float
    kind: str
    subject: str
    pool: str
    engine: str
    zone: str
    proxy: str
    before: str
    after: str
    evidence: str
    rule: str
    place: str
    returns: str
    until_in_s: float | None
    alarm: bool
    numbers: Mapping[str, float]
    times: int
    first_age_s: float
    requests: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleStatus:
    """A policy field that decides: its value for the pool, and the ``file:line`` that set it."""

    field: str
    value: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why an engine, a zone or a pool is as it is, in sentences for people.

    ``well``: nothing is wrong. ``now`` is the state and its duration, ``because`` the evidence with its figures.
    ``why_not`` explains a state that contradicts the evidence. ``returns`` is what would reverse it, at the
    latest ``until_in_s`` seconds from the answer. ``past`` are earlier events, newest first.
    """

    subject: str
    kind: str
    well: bool
    now: str
    because: tuple[str, ...] = ()
    why_not: tuple[str, ...] = ()
    ruled_by: tuple[RuleStatus, ...] = ()
    returns: str = ""
    until_in_s: float | None = None
    past: tuple[EventStatus, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionStatus:
    """Regions that serve the callers of one region, by ``sends_percent``; ``barred`` counts excluded engines."""

    region: str
    home: str
    sends_percent: Mapping[str, float]
    barred: int
    reason: str
    age_s: float
    in_force: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """One pool in figures; None where no proxy reports it, or nothing is decided.

    ``ceiling`` and ``held`` are requests in flight, ``shed_per_s`` is by priority class. ``shadow`` names the
    decisions that are in shadow mode. ``revisions`` counts engines by region and revision of the model;
    ``regions`` is empty where all engines are in one region.
    """

    pool: str
    model: str
    engines: int
    healthy: int
    kept_in: int
    level: int
    level_reason: str
    ceiling: int | None
    held: int | None
    ceiling_reason: str
    slots: float
    in_flight: int | None
    arrivals_per_s: float | None
    done_per_s: float | None
    shed_per_s: Mapping[str, float]
    retries_per_s: float | None
    error_percent: float | None
    pressure: float | None
    utilization: float | None
    hedging: bool | None
    hedge_delay_s: float | None
    answer_p99_s: float | None
    first_byte_p99_s: float | None
    telemetry_age_s: float | None
    shadow: tuple[str, ...]
    revisions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    regions: tuple[RegionStatus, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneStatus:
    """One pool in one zone: its engines, and the zones that serve callers there, by ``sends_percent``."""

    pool: str
    zone: str
    engines: int
    healthy: int
    slots: int
    in_flight: int | None
    sends_percent: Mapping[str, float]
    reason: str
    age_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderRequest:
    """An order for ``for_s`` seconds; ``engine`` is ``pool/engine``, or its own name where only one has it."""

    engine: str
    action: str
    for_s: float
    reason: str
    by: str = ""
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderStatus:
    """An operator's order in force; ``note`` warns the operator who gave it."""

    pool: str
    engine: str
    action: str
    reason: str
    by: str
    force: bool
    given_at_unix_s: float
    left_s: float
    note: str = ""
