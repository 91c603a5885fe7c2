"""Everything that is written of, at one moment: what the cluster holds, what was decided, and how far it came."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from xds_server.decide.decisions import EngineDecision
from xds_server.fleet import EngineId, Fleet
from xds_server.kube.objects import PodRef, PolicyObject
from xds_server.ledger.event import Event
from xds_server.writeback.programming import Programming


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What one replica knows when it may write.

    ``digest`` names the policies that are served, empty while none are, ``texts`` are those policies by file;
    ``held`` is why newer ones are held back, empty where none are. ``fleet`` and ``engines`` are what was decided
    last, at ``now_s``; ``events`` those of the ledger that were not told before. ``programming`` is how far the
    served policies have come in the proxies of every replica.
    """

    objects: Sequence[PolicyObject]
    digest: str
    texts: Mapping[str, str]
    fleet: Fleet | None
    engines: Mapping[EngineId, EngineDecision]
    programming: Programming
    now_s: float
    held: str = ""
    pods: Mapping[EngineId, PodRef] = field(default_factory=dict)
    events: Sequence[Event] = ()
