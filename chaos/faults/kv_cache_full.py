"""A KV cache without room: requests are preempted and computed again, so all is slow and nothing fails."""

from typing import ClassVar, Literal

from chaos.fake_engine.faults import KvCacheFull as EngineKvCacheFull
from chaos.fake_engine.faults import SteadyFault
from chaos.faults.engine_trouble import EngineTrouble
from policies.document import described


class KvCacheFull(EngineTrouble):
    """Metrics say that the cache is full and count preemptions; everything takes ``factor`` times as long."""

    incident: ClassVar[str] = "A few callers sent prompts of a hundred pages; everybody's answers were preempted."
    breaks: ClassVar[bool] = False

    kind: Literal["kv_cache_full"] = described("kv_cache_full", "Kind of the fault.")
    factor: float = described(4.0, "How many times longer everything takes.", gt=1, le=1000)

    def trouble(self) -> SteadyFault:
        return EngineKvCacheFull(factor=self.factor)

    def capacity_left(self) -> float:
        return 1 / self.factor
