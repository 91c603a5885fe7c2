"""A stalled transfer: prompts are computed, and their KV caches reach no decode engine."""

from typing import ClassVar, Literal

from chaos.fake_engine.engine_faults import EngineKvTransferStall, SteadyEngineFault
from chaos.faults.cluster_chaos import INSIDE_ENGINE
from chaos.faults.simulated_engine_fault import SimulatedEngineFault
from policies.document import documented_field


class KvTransferStallFault(SimulatedEngineFault):
    """A prefill engine answers, but its KV caches are never sent; they fill its cache, and decode engines wait."""

    incident: ClassVar[str] = "An RDMA link flapped; the transfer library waited for completions that never came."
    not_in_clusters: ClassVar[str] = INSIDE_ENGINE

    kind: Literal["kv_transfer_stall"] = documented_field("kv_transfer_stall", "Kind of the fault.")

    def engine_fault(self) -> SteadyEngineFault:
        return EngineKvTransferStall()
