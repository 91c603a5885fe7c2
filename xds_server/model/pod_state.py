"""An engine's state in its orchestrator.

Kubernetes knows that a pod is being deleted before the engine does, and that a node is unfit before anything
fails. It does not know whether an engine can produce a token, so its state is weighed with the other evidence.
"""

from dataclasses import dataclass
from enum import StrEnum


class PodPhase(StrEnum):
    """An engine's phase in its orchestrator; present if unknown."""

    PRESENT = "present"
    NOT_READY = "not-ready"  # not ready: soft evidence, down to the capacity floor
    UNFIT = "unfit"  # its node is tainted or broken: no new requests, down to the capacity floor
    LEAVING = "leaving"  # it is being deleted: no new requests, whatever the floor
    GONE = "gone"  # it has been deleted, but is still in the list of endpoints

    @property
    def final(self) -> bool:
        """Whether this phase is irreversible."""
        return self in {PodPhase.LEAVING, PodPhase.GONE}


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """The state of one engine. ``reason`` is one sentence, such as ``node gpu-7 has taint gpu-broken``."""

    standing: PodPhase
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRef:
    """The pod of an engine. ``has_gate``: its spec has our readiness gate."""

    namespace: str
    name: str
    uid: str
    has_gate: bool = False
