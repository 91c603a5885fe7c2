"""State of a running server: proxies, engines, pools, policies, events and orders.

Ages are seconds at the moment of the answer. ``None`` means unknown or not applicable.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, TypeAlias

from pydantic import Field

from engine.report import DrainRequest, Evidence, GpuSummary, Quantiles


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowEngineStatus:
    """An engine that shadow mode would have ejected; ``capacity_percent``: its share of the pool."""

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
    """Estimated requests that an admission limit in shadow mode would have refused."""

    pool: str
    reason: str
    over_s: float
    refused: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowStatus:
    """Effects that decisions in shadow mode would have had since the server started."""

    engines: tuple[ShadowEngineStatus, ...]
    pools: tuple[ShadowPoolStatus, ...]


class SyncState(StrEnum):
    """Sync state of one resource type of a proxy."""

    SYNCED = "SYNCED"  # accepted (ACK) the latest version
    STALE = "STALE"  # latest version sent, no ACK or NACK yet
    NACK = "NACK"  # refused (NACK) the latest version and keeps the previous one


SyncStateName: TypeAlias = Annotated[SyncState | str, Field(union_mode="left_to_right")]
"""A ``SyncState``, or an unknown state from a newer server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedResource:
    """A resource that a proxy refused: origin in the policies, and Envoy's error message."""

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
    """One connected proxy. ``protocol``: ``delta`` or ``sotw``; empty ``pools`` means all pools."""

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
    """Traffic of one proxy to one pool, and its admission limits by priority class.

    ``shuns``: admitted engines that it sends nothing, ejected by Envoy itself.
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
    """Agent of one engine. ``covering``: its reports replace the prober. ``trouble``: why it is not connected.

    ``clock_ahead_s``: its clock minus the server's at connect. Like the certificate dates, None if not reported.
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
    """One engine: last report, its source, and decisions.

    ``verdict``, ``source`` and ``report_age_s`` are None before the first report. ``health`` is None before the
    first decision, and while neither agent, probe nor proxy ever reported on it. ``address`` is empty while a
    host name is unresolved. ``agent`` is None if the policy declares none. ``ejector``: the decision that would
    eject it; ``floor``: the capacity floor keeps it in rotation. ``shadow``: its health if shadow-mode decisions
    were enforced. ``slow_start_percent``: part of its share while it ramps up, full in ``slow_start_left_s``.
    ``keys_held_s``: until its keys come back (``affinity.returnAfter``); 0 if none are held back. ``order``:
    operator order. ``standing``: state of its pod. ``adapters``: LoRA adapters that it has. None without a report
    by any proxy: ``in_flight``, ``error_percent`` of the last ``window_calls``, ``done_per_s``, ``service_s``.
    ``shunned_by``: proxies whose Envoy ejected it.
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
    adapters: tuple[str, ...] | None = None
    gpu: GpuSummary | None = None
    drain: DrainRequest | None = None
    ejector: str | None = None
    floor: bool = False
    traffic_percent: float = 100.0
    slow_start_percent: float = 100.0
    slow_start_left_s: float = 0.0
    keys_held_s: float = 0.0
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
    """State of the policy files, and the policies in force.

    ``state`` of the files: ``accepted``, ``refused`` (see ``errors``) or ``held`` (see ``held``).
    ``serving_digest``: digest of the policies in force, the last accepted ones; ``stale``: they come from the
    previous run. ``source``: ``files`` or ``kubernetes``. ``lost_s``: time without contact, by plural of the
    Kubernetes kind.
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
    """Defect of a file needed for trust or restart."""

    UNUSABLE = "unusable"  # the previous content stays in use; an unusable token admits no client
    ENDS = "ends"  # expires soon and was not renewed
    ENDED = "ended"
    OPEN = "open"  # readable by users other than the owner
    WITHHELD = "withheld"  # withheld from proxies that did not prove an identity
    UNWRITTEN = "unwritten"  # the disk rejects writes
    REFUSES = "refuses"  # refuses proxies that keep connecting: intended, or missing in the rules


FileDefectName: TypeAlias = Annotated[FileDefect | str, Field(union_mode="left_to_right")]
"""A ``FileDefect``, or an unknown defect from a newer server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProblem:
    """A problem with a file; ``what``: certificate, rules, token, secret, or state (persisted for a restart).

    ``sentence`` describes the problem and never quotes the file. ``ends_in_s`` is negative after expiry.
    """

    what: str
    defect: FileDefectName
    file: str
    sentence: str
    age_s: float = 0.0
    ends_in_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBackResource:
    """A resource that proxies lack because they refused it, or because a quorum did.

    ``refused_by``: the first of ``refusals`` proxies, on ``hosts`` hosts or identities; ``age_s``: since the first
    refusal. ``held_from``: proxy versions that get the content before, because a quorum refused it.
    ``on_content_before`` and ``on_nothing`` count proxies by what they have instead; ``on_trial`` are sent it, and
    have not refused it.
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
    hosts: int = 0
    held_from: tuple[str, ...] = ()


class Severity(StrEnum):
    """Severity of a condition."""

    INFO = "info"  # normal for a while
    WARNING = "warning"  # needs a look
    CRITICAL = "critical"  # the policies are not in force, or requests fail


SeverityName: TypeAlias = Annotated[Severity | str, Field(union_mode="left_to_right")]
"""A ``Severity``, or an unknown one from a newer server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A state of the server that operators should know, the same in every view.

    ``subject``: the object, for people; ``pool``, ``engine`` and ``proxy`` name it if it is one. ``origins``: the
    policy lines concerned. ``sentence`` has no age: ``since_unix_s`` tells it, None if unknown. ``count``: objects
    that it stands for. ``runbook``: page in ``docs/runbooks``, empty without one.
    """

    code: str
    severity: SeverityName
    subject: str
    sentence: str
    fix: str
    since_unix_s: float | None = None
    pool: str = ""
    engine: str = ""
    proxy: str = ""
    origins: tuple[str, ...] = ()
    count: int = 1
    runbook: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What makes it the same condition later."""
        return self.code, self.subject


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedObject:
    """A custom resource whose latest spec is rejected; ``file``: its name among the policy files."""

    kind: str
    namespace: str
    name: str
    file: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachedLimit:
    """A limit that peers reached within the last minute, with the code of its condition.

    ``peers``: the latest, by host and node id; ``count`` of all.
    """

    code: str
    peers: tuple[str, ...]
    count: int
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether the server serves proxies, and the reason if not."""

    ready: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStatus:
    """One ledger event.

    ``place``: ``file:line`` that set the field ``rule``, or the default. ``until_in_s``: latest time of the next
    check, in seconds from the answer. One event stands for ``times`` equal transitions, the first ``first_age_s``
    ago. ``requests``: its latest failed requests (``x-request-id``).
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
    """A policy field behind a decision: its value for the pool, and the ``file:line`` that set it."""

    field: str
    value: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Explanation of an engine, zone, pool or tenant, in sentences for operators.

    ``well``: no problem. ``now``: state and duration. ``because``: evidence with figures. ``why_not``: why the
    state contradicts the evidence. ``returns``: what reverses it, within ``until_in_s`` seconds of the answer.
    ``past``: earlier events, newest first.
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
    """Regions that serve callers of one region, by ``sends_percent``; ``barred``: number of excluded engines."""

    region: str
    home: str
    sends_percent: Mapping[str, float]
    barred: int
    reason: str
    age_s: float
    in_force: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterStatus:
    """One LoRA adapter that routes ask a pool for, or that it loads: engines in rotation that list it.

    ``unknown``: engines in rotation that have not listed their models; they get its requests as well.
    ``routed``: whether a route asks this pool for it, not only as a fallback. ``wanted``: engines that shall have
    it; None: it is not loaded. ``trouble``: the engine that did not load it last, and why.
    """

    adapter: str
    engines: int
    unknown: int = 0
    routed: bool = True
    wanted: int | None = None
    trouble: str = ""

    @property
    def lost(self) -> bool:
        """Whether no engine in rotation can serve it."""
        return not self.engines and not self.unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """One pool; fields are None before a decision or without a report by a proxy.

    ``ceiling`` and ``held`` are requests in flight; ``shed_per_s`` is by priority class. ``shadow``: decisions in
    shadow mode. ``revisions``: engines by region and model revision. ``regions`` is empty if all engines are in
    one region. ``fallback``: whether a route declares a pool that takes over. ``keys_away_percent``: keys of
    affinity that are not with their engine, because it is out of rotation or has a part of its share; None
    without soft affinity. ``stage``: empty for none. ``prefilled_percent``: requests of the last minute for which
    a prefill engine was named; None without any, or without a prefill pool. ``adapters``:
    those that routes ask for, by name.
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
    fallback: bool = False
    keys_away_percent: float | None = None
    stage: str = ""
    prefilled_percent: float | None = None
    adapters: tuple[AdapterStatus, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneStatus:
    """One pool in one zone: its engines, and the zones that serve callers there, by ``sends_percent``.

    ``calls_per_s``: calls of the last minute from proxies of this zone, by zone of the engines, from load reports.
    """

    pool: str
    zone: str
    engines: int
    healthy: int
    slots: int
    in_flight: int | None
    sends_percent: Mapping[str, float]
    reason: str
    age_s: float | None
    calls_per_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderRequest:
    """An order for ``for_s`` seconds; ``engine``: ``pool/engine``, or a unique engine name.

    To ``degrade``, ``engine`` names a pool, and ``level`` is its degradation level, 0 to 4.
    """

    engine: str
    action: str
    for_s: float
    reason: str
    by: str = ""
    force: bool = False
    level: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderStatus:
    """An operator order in force; ``note``: warning for its author.

    ``engine`` is empty if it is for the pool; ``level`` is the degradation level it orders.
    """

    pool: str
    engine: str
    action: str
    reason: str
    by: str
    force: bool
    given_at_unix_s: float
    left_s: float
    level: int | None = None
    note: str = ""
