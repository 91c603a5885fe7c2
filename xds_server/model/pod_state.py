"""What whoever runs the engines says of one of them, beside what is seen of the engine itself.

Kubernetes knows that a pod is leaving before the engine does, and that a node is unfit before anything fails. It
does not know whether an engine can produce a token, so its word is weighed with the other evidence.
"""

from dataclasses import dataclass
from enum import StrEnum


class PodPhase(StrEnum):
    """How an engine stands with its orchestrator. One that nothing is said of is present."""

    PRESENT = "present"
    NOT_READY = "not-ready"  # its readiness is denied: as soft as any other evidence, and the floor holds
    UNFIT = "unfit"  # its node is tainted or broken: nothing new, as far as the floor allows
    LEAVING = "leaving"  # it is being ended: nothing new, whatever the floor, for it goes anyway
    GONE = "gone"  # it has been deleted, and only the list of endpoints does not say so yet

    @property
    def final(self) -> bool:
        """Whether it ends here whatever anyone decides: there is no way back from it."""
        return self in {PodPhase.LEAVING, PodPhase.GONE}


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """The standing of one engine. ``reason`` is one sentence, such as ``node gpu-7 has taint gpu-broken``."""

    standing: PodPhase
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRef:
    """The pod an engine runs in. ``has_gate`` says whether its spec has our readiness gate."""

    namespace: str
    name: str
    uid: str
    has_gate: bool = False
