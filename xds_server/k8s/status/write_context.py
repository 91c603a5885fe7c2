"""Everything that is written of, at one moment: what the cluster holds, what was decided, and how far it came."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from xds_server.decide.decisions import EngineDecision
from xds_server.k8s.policy_object import PolicyObject
from xds_server.k8s.replica_status import NackSummary
from xds_server.ledger.event import Event
from xds_server.model.fleet import EngineId, Fleet
from xds_server.model.pod_state import PodRef


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgrammedState:
    """How far ``digest`` has come. ``waiting`` names replicas whose proxies have not all confirmed it yet."""

    digest: str
    proxies: int
    waiting: tuple[str, ...] = ()
    refusals: tuple[NackSummary, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteContext:
    """What one replica knows when it may write.

    ``digest`` names the policies that are served, empty while none are, ``texts`` are those policies by file;
    ``hold_reason`` is why newer ones are held back, empty where none are. ``fleet`` and ``engines`` are what was
    decided last, at ``now_s``; ``events`` those of the ledger that were not told before. ``programmed`` is how far
    the served policies have come in the proxies of every replica.
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
