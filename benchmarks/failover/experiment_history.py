"""What was seen in one experiment, as values; everything that is judged is computed from these.

All times are the machine's monotonic clock in seconds, which is one for all processes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.failover.failover_scenarios import EngineOutage
from chaos.fake_engine.call_log import CallOutcome as Fate
from chaos.history.history_events import ProxySample
from chaos.history.request_outcomes import RequestOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAttempt:
    """One call of one request to one engine, from the engine's own book. ``slot_s`` is how long it held a slot; a
    GPU that stands still hands out none.
    """

    engine: int
    request_id: str
    fate: Fate
    reason: str
    arrived_at_s: float
    closed_at_s: float
    started_at_s: float | None
    slot_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthChange:
    """At ``at_s`` the control plane was first seen to think so of an engine."""

    at_s: float
    engine: int
    health: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuUse:
    """CPU use of each part while requests arrived, in percent of one core; ``machine`` is the use of all cores by
    all processes, ``ours`` the experiment's part of it.
    """

    processes: Mapping[str, float] = field(default_factory=dict)
    machine: float = 0.0
    ours: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentHistory:
    """One experiment. ``began_s`` is when the first request could arrive; the fault window is ``[fault_s,
    healed_s)`` and the time watched ends at ``end_s``. ``outages`` are what really happened, when. ``samples`` are
    as the chaos harness makes them: with names (``e0``, ``p0``), and with times from the beginning.
    """

    began_s: float
    fault_s: float
    healed_s: float
    end_s: float
    outages: tuple[EngineOutage, ...]
    outcomes: Sequence[RequestOutcome]
    attempts: Sequence[EngineAttempt]
    samples: Sequence[ProxySample] = ()
    verdicts: Sequence[HealthChange] = ()
    use: CpuUse = field(default_factory=CpuUse)


def attempts_of(engine: int, book: Any) -> list[EngineAttempt]:
    """The calls of clients in an engine's book; probes, which have no request id, are left out."""
    return [
        EngineAttempt(
            engine=engine,
            request_id=str(call["request_id"]),
            fate=Fate(call["outcome"]),
            reason=str(call["reason"]),
            arrived_at_s=float(call["arrived_at_s"]),
            closed_at_s=float(call["closed_at_s"]),
            started_at_s=None if call["started_at_s"] is None else float(call["started_at_s"]),
            slot_s=float(call["slot_s"]),
        )
        for call in book["calls"]
        if str(call["request_id"]).startswith("load-")
    ]
