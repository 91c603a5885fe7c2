"""Inputs of the status writer at one moment: cluster objects, decisions, and progress."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from xds_server.admin_api.status_types import Condition
from xds_server.decide.decisions import EngineDecision
from xds_server.k8s.policy_object import PolicyObject
from xds_server.k8s.replica_status import NackSummary
from xds_server.ledger.event import Event
from xds_server.model.fleet import EngineId, Fleet
from xds_server.model.pod_state import PodRef


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgrammedState:
    """Progress of ``digest``. ``waiting``: replicas whose proxies have not all accepted it."""

    digest: str
    proxies: int
    waiting: tuple[str, ...] = ()
    refusals: tuple[NackSummary, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteContext:
    """Data of one replica for the status writer.

    ``digest``: the served policies, empty if none; ``texts``: those policies by file. ``hold_reason``: why newer
    policies are held, empty if none. ``fleet`` and ``engines``: the latest decisions, at ``now_s``. ``events``:
    ledger events not yet written. ``programmed``: progress of the served policies in the proxies of all replicas.
    ``conditions`` of this server, worst first.
    """

    objects: Sequence[PolicyObject]
    digest: str
    texts: Mapping[str, str]
    fleet: Fleet | None
    engines: Mapping[EngineId, EngineDecision]
    programmed: ProgrammedState
    now_s: float
    hold_reason: str = ""
    pods: Mapping[EngineId, PodRef] = field(default_factory=dict)
    events: Sequence[Event] = ()
    conditions: Sequence[Condition] = ()
