"""Everything that is written of, at one moment: what the cluster holds, what was decided, and how far it came."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from policies.model import PolicySet
from xds_server.decide.decisions import EngineDecision
from xds_server.fleet import EngineId, Fleet
from xds_server.kube.objects import PodRef, PolicyObject
from xds_server.ledger.event import Event
from xds_server.writeback.programming import Programming


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What one replica knows when it may write.

    ``digest`` names the policies that are served, empty while none are; ``fleet`` and ``engines`` are what was
    decided last; ``events`` those of the ledger that were not told before. ``programming`` is how far the served
    policies have come in the proxies of every replica.
    """

    objects: Sequence[PolicyObject]
    digest: str
    policies: PolicySet | None
    fleet: Fleet | None
    engines: Mapping[EngineId, EngineDecision]
    programming: Programming
    pods: Mapping[EngineId, PodRef] = field(default_factory=dict)
    events: Sequence[Event] = ()
