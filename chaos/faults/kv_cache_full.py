"""A full KV cache: requests are preempted and recomputed, so all are slow and none fail."""

from typing import ClassVar, Literal

from chaos.fake_engine.engine_faults import EngineKvCacheFull, SteadyEngineFault
from chaos.faults.cluster_chaos import INSIDE_ENGINE
from chaos.faults.simulated_engine_fault import SimulatedEngineFault
from policies.document import documented_field


class KvCacheFullFault(SimulatedEngineFault):
    """Metrics report a full KV cache and count preemptions; everything takes ``factor`` times as long."""

    incident: ClassVar[str] = "A few callers sent hundred-page prompts; all callers' requests were preempted."
    breaks: ClassVar[bool] = False
    not_in_clusters: ClassVar[str] = INSIDE_ENGINE

    kind: Literal["kv_cache_full"] = documented_field("kv_cache_full", "Kind of the fault.")
    factor: float = documented_field(4.0, "Factor on all service times.", gt=1, le=1000)

    def engine_fault(self) -> SteadyEngineFault:
        return EngineKvCacheFull(factor=self.factor)

    def capacity_left(self) -> float:
        return 1 / self.factor
