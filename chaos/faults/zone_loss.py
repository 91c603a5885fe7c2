"""Loss of a zone: its engines and their agents."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from chaos.fake_engine.engine_faults import EngineCrash
from chaos.faults.actions import FaultAction, KillProcess, ProcessRole, SetEngineFault
from chaos.faults.cluster_chaos import (
    ChaosMeshObject,
    ClusterContext,
    LitmusExperiment,
    pod_deleted,
    pod_unavailable,
)
from chaos.faults.fault import Fault
from policies.document import documented_field


class ZoneLossFault(Fault):
    """Crash the engines and kill the agents of a ``zone``; healing restarts them all at once.

    The zone's proxies keep running; use ``partition`` to cut them off.
    """

    incident: ClassVar[str] = "A cooling failure took down an availability zone with a third of the fleet."

    kind: Literal["zone_loss"] = documented_field("zone_loss", "Kind of the fault.")

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (
            SetEngineFault(engine=target, fault=EngineCrash()),
            KillProcess(part=ProcessRole.AGENT, target=target),
        )

    def chaos_mesh(self, _context: ClusterContext) -> Iterator[ChaosMeshObject]:
        yield pod_unavailable()

    def litmus(self, context: ClusterContext) -> LitmusExperiment:
        return pod_deleted(context)
