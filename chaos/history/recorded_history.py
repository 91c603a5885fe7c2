"""One experiment as a value: its events by kind, sorted by time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chaos.history.history_events import (
    AttemptRecord,
    ConfigPush,
    ConfigReply,
    ControlPlaneDecision,
    CpuUsage,
    EngineDetection,
    ExperimentAborted,
    ExperimentBegan,
    ProcessExit,
    ProxySample,
    RequestRecord,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A fault as it happened. ``end_s`` is None if the history ends before it was healed."""

    id: str
    fault: Mapping[str, Any]
    targets: tuple[str, ...]
    start_s: float
    end_s: float | None

    @property
    def kind(self) -> str:
        """Kind of the fault."""
        return str(self.fault["kind"])


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All events. ``ended_s`` is None for a truncated file.

    ``attempts`` are calls for answers, ``prefills`` those for the KV caches of their prompts.
    """

    began: ExperimentBegan
    outages: tuple[Outage, ...] = ()
    requests: Sequence[RequestRecord] = ()
    attempts: Sequence[AttemptRecord] = ()
    prefills: Sequence[AttemptRecord] = ()
    samples: Sequence[ProxySample] = ()
    detected: Sequence[EngineDetection] = ()
    decided: Sequence[ControlPlaneDecision] = ()
    pushed: Sequence[ConfigPush] = ()
    answered: Sequence[ConfigReply] = ()
    gone: Sequence[ProcessExit] = ()
    aborted: ExperimentAborted | None = None
    used: CpuUsage | None = None
    ended_s: float | None = None
    unread: Sequence[str] = field(default_factory=tuple)
    """Unreadable lines: location and cause."""

    @property
    def fault_s(self) -> float:
        """Start of the first fault; the end without one."""
        return min((one.start_s for one in self.outages), default=self.end_s)

    @property
    def healed_s(self) -> float:
        """End of the last fault."""
        return max((self.end_s if one.end_s is None else one.end_s for one in self.outages), default=self.end_s)

    @property
    def end_s(self) -> float:
        """Time of the last arrival."""
        stopped = self.began.seconds if self.aborted is None else min(self.began.seconds, self.aborted.at_s)
        return stopped if self.ended_s is None else min(stopped, self.ended_s)

    @property
    def slots(self) -> Mapping[str, int]:
        """Slots of each engine of the pool under test, by name."""
        return {one.name: one.slots for one in self.began.engines if one.pool == self.began.pool}
