"""What can be asked of a running server, as values: the JSON of the admin port is exactly these.

Ages are seconds at the moment of the answer. ``None`` means not known, or not so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from engine.report import DrainRequest, Evidence, GpuSummary, Quantiles


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowEngineStatus:
    """What would have become of one engine; see ``ledger.shadow``."""

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
    """What a ceiling that is not in force would have refused, by estimate."""

    pool: str
    reason: str
    over_s: float
    refused: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowStatus:
    """What decisions that are not enforced would have done since the server started."""

    engines: tuple[ShadowEngineStatus, ...]
    pools: tuple[ShadowPoolStatus, ...]


class SyncState(StrEnum):
    """Whether a proxy has what it should have of one type."""

    SYNCED = "SYNCED"  # it acknowledged the newest version
    STALE = "STALE"  # it has been sent a newer version and has not answered yet
    NACK = "NACK"  # it refused the newest version and keeps the one before


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedResource:
    """A resource that a proxy refused: which, where in the policies it came from, and Envoy's own words."""

    name: str
    version: str
    origins: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeStatus:
    """One resource type of one proxy; ``age_s`` is how long it has been in this state."""

    type: str
    state: SyncState
    age_s: float
    version: str
    resources: int
    refused: tuple[RefusedResource, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyStatus:
    """One connected proxy. ``protocol`` is ``delta`` or ``sotw``; ``pools`` is empty when it is served all."""

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
    """One proxy's part in one pool: what comes to it, what it refuses, what it may have in flight, by class.

    ``shuns`` are engines it sends nothing although they are in: Envoy's own ejections.
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
    """The agent of one engine. ``covering``: its word stands; ``trouble`` says why it is not connected.

    ``clock_ahead_s`` of ours when it was dialled; like the dates of its certificate, None where it does not say.
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
    """One engine: what was last reported of it and by whom, and what was decided.

    ``verdict``, ``source`` and ``report_age_s`` are None while nothing has been heard; ``address`` is empty while
    a host name has not been resolved; ``agent`` is None where none is declared. ``ejector`` is who wants it out,
    ``floor`` that it is kept in all the same; ``shadow`` the health it would have, were that enforced; ``order``
    an operator's. ``standing`` is what its orchestrator says. What proxies see is None where none tells:
    ``in_flight``, ``error_percent`` of the last ``window_calls``, ``done_per_s``, ``service_s``. ``shunned_by``
    are proxies that send it nothing by themselves.
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
    """One reason why the policy files are refused; ``place`` is ``file:line:column``."""

    code: str
    place: str
    path: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoliciesStatus:
    """What the policy files say, and what is served.

    ``state`` is of the files: ``accepted``, ``refused`` (see ``errors``) or ``held`` (see ``held``).
    ``serving_digest`` is of the policies that are served, which stay the last accepted ones; ``stale`` is
    true while those come from the last run of the server. ``source`` is where policies are read from, ``files`` or
    ``kubernetes``, and ``lost_s`` how long which kinds of its objects have been out of touch, by plural.
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
    """What proxies of one zone and role are served."""

    zone: str
    role: str
    resources: tuple[ResourceStatus, ...]


class FileDefect(StrEnum):
    """What is wrong with a file that trust or a restart depends on."""

    UNUSABLE = "unusable"  # what it held before stays in use; a token is nobody's
    ENDS = "ends"  # soon, and nobody has renewed it
    ENDED = "ended"
    OPEN = "open"  # others than its owner may read it
    WITHHELD = "withheld"  # some proxies are not sent it, for they did not prove who they are
    UNWRITTEN = "unwritten"  # the disk refuses it
    REFUSES = "refuses"  # proxies that come all the time; as meant, or the rules forget them


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProblem:
    """Trouble with a file; ``what`` is certificate, rules, token or secret, or state: what a restart begins with.

    ``sentence`` says what is wrong and never what is in the file; ``ends_in_s`` is negative once it has ended.
    """

    what: str
    defect: FileDefect
    file: str
    sentence: str
    age_s: float = 0.0
    ends_in_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether the server serves proxies, and one sentence why."""

    ready: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStatus:
    """One event of the ledger; see ``docs/operating.md``.

    ``place`` is the ``file:line`` that set the field ``rule``, or says that nobody did. ``until_in_s`` is when it
    is looked at again at the latest, in seconds from the answer. ``times`` transitions like this one, the first
    ``first_age_s`` ago, are told as one. ``requests``: the newest that the engine had failed (``x-request-id``).
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
    """A field that rules a decision: its value for the pool, and the ``file:line`` that set it."""

    field: str
    value: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why an engine, a zone or a pool is as it is. Every part is sentences, for people.

    ``well``: as it should be. ``now`` is what it is and since when; ``because`` the evidence with its figures;
    ``why_not`` why it is not as one might expect from the evidence; ``returns`` what would reverse it,
    ``until_in_s`` seconds from the answer at the latest; ``past`` what happened before, newest first.
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
    """Who serves the callers of a region. ``sends_percent`` is by serving region; ``barred`` counts engines."""

    region: str
    home: str
    sends_percent: Mapping[str, float]
    barred: int
    reason: str
    age_s: float
    in_force: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """One pool in figures; what no proxy tells, and what is not decided, is None.

    ``ceiling`` and ``held`` are requests in flight, ``shed_per_s`` by priority class. ``shadow`` names the parts
    that are decided and not enforced. ``revisions`` is how many engines serve each revision of the model, by
    region; ``regions`` is empty where all engines are in one.
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
    """One pool in one zone: its engines there, and where calls from there go, in percent by engine zone."""

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
    """An order that somebody gives; ``engine`` as for ``switchgear why``, ``for_s`` how long it is to hold."""

    engine: str
    action: str
    for_s: float
    reason: str
    by: str = ""
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderStatus:
    """An operator's order that is in force; ``note`` is what whoever gives it should know at once."""

    pool: str
    engine: str
    action: str
    reason: str
    by: str
    force: bool
    given_at_unix_s: float
    left_s: float
    note: str = ""
