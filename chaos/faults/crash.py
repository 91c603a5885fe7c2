"""A process crash: open connections are reset, new ones refused until it restarts."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from chaos.fake_engine.engine_faults import EngineCrash, SteadyEngineFault
from chaos.faults.cluster_chaos import (
    ChaosMeshObject,
    ClusterContext,
    LitmusExperiment,
    pod_deleted,
    pod_unavailable,
)
from chaos.faults.simulated_engine_fault import SimulatedEngineFault
from policies.document import documented_field


class CrashFault(SimulatedEngineFault):
    """The engine process exits; healing restarts it with an empty queue."""

    incident: ClassVar[str] = "An assertion in the engine's scheduler failed and the process exited."

    kind: Literal["crash"] = documented_field("crash", "Kind of the fault.")

    def engine_fault(self) -> SteadyEngineFault:
        return EngineCrash()

    def chaos_mesh(self, _context: ClusterContext) -> Iterator[ChaosMeshObject]:
        yield pod_unavailable()

    def litmus(self, context: ClusterContext) -> LitmusExperiment:
        return pod_deleted(context)
