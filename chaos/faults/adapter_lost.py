"""A lost adapter: the engine serves its model, and answers 404 for its LoRA adapters."""

from typing import ClassVar, Literal

from chaos.fake_engine.engine_faults import EngineAdapterLost, SteadyEngineFault
from chaos.faults.cluster_chaos import INSIDE_ENGINE
from chaos.faults.simulated_engine_fault import SimulatedEngineFault
from policies.document import documented_field


class AdapterLostFault(SimulatedEngineFault):
    """An engine lists none of its adapters any more; requests for them should go to engines that have them."""

    incident: ClassVar[str] = "A node was replaced; its engine came back without the adapters loaded by hand."
    not_in_clusters: ClassVar[str] = INSIDE_ENGINE

    kind: Literal["adapter_lost"] = documented_field("adapter_lost", "Kind of the fault.")

    def engine_fault(self) -> SteadyEngineFault:
        return EngineAdapterLost()
