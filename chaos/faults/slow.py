"""A straggler: everything on the GPU takes longer, nothing fails."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from chaos.fake_engine.engine_faults import EngineSlow, SteadyEngineFault
from chaos.faults.cluster_chaos import (
    ANSWERS_PATH,
    ChaosMeshObject,
    ClusterContext,
    LitmusExperiment,
    http_chaos,
    litmus_http_latency,
)
from chaos.faults.simulated_engine_fault import SimulatedEngineFault
from policies.document import documented_field
from policies.quantity import format_duration


class SlowFault(SimulatedEngineFault):
    """Prefill and decoding take ``factor`` times as long, also for running calls."""

    incident: ClassVar[str] = (
        "Another process on the host used up the PCIe bandwidth; one replica ran at a quarter of its speed."
    )
    breaks: ClassVar[bool] = False

    kind: Literal["slow"] = documented_field("slow", "Kind of the fault.")
    factor: float = documented_field(4.0, "Factor on all service times.", gt=1, le=1000)

    def engine_fault(self) -> SteadyEngineFault:
        return EngineSlow(factor=self.factor)

    def capacity_left(self) -> float:
        return 1 / self.factor

    def chaos_mesh(self, context: ClusterContext) -> Iterator[ChaosMeshObject]:
        differs = "same delay for every request, in front of the engine; adjust it to your service time"
        delay = format_duration(round((self.factor - 1) * context.service_time_s, 3))
        yield http_chaos(context, "Request", ANSWERS_PATH, differs=differs, delay=delay)

    def litmus(self, context: ClusterContext) -> LitmusExperiment:
        differs = "same delay for every request; adjust it to your service time"
        return litmus_http_latency(context, (self.factor - 1) * context.service_time_s, differs)
