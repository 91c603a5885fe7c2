"""What can be asked of a running server, as values: the JSON of the admin port is exactly these.

Ages are seconds at the moment of the answer. ``None`` means not known, or not so.
"""

from dataclasses import dataclass
from enum import StrEnum

from engine.report import DrainRequest, Evidence, GpuSummary, Quantiles


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStatus:
    """The agent of one engine. ``covering``: its word stands; ``trouble`` says why it is not connected."""

    authority: str
    connected: bool
    covering: bool
    boot_id: str
    trouble: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """One engine: what was last reported of it and by whom, and what was decided.

    ``verdict``, ``source`` and ``report_age_s`` are None while nothing has been heard; ``address`` is empty while
    a host name has not been resolved; ``agent`` is None where none is declared.
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
    true while those come from the last run of the server.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether the server serves proxies, and one sentence why."""

    ready: bool
    reason: str
