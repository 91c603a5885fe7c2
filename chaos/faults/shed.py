"""An engine that refuses calls at once: it looks idle and attracts more of them."""

import math
from typing import ClassVar, Literal

from chaos.fake_engine.engine_faults import EngineShed, SteadyEngineFault
from chaos.faults.simulated_engine_fault import SimulatedEngineFault
from policies.document import documented_field
from policies.quantity import Duration


class ShedFault(SimulatedEngineFault):
    """Refuse calls with 503 before any work."""

    incident: ClassVar[str] = "An admission limit left over from a test refused every call within milliseconds."
    not_in_clusters: ClassVar[str] = (
        "only the engine can refuse before any work; chaos tools replace the answer after it"
    )

    kind: Literal["shed"] = documented_field("shed", "Kind of the fault.")
    retry_after: Duration | None = documented_field(
        1.0,
        "Retry-After header, rounded up to whole seconds; null omits it.",
        unit="duration",
        ge=0,
        le=3600,
    )
    share: float = documented_field(1.0, "Share of calls that are refused.", gt=0, le=1)

    def engine_fault(self) -> SteadyEngineFault:
        seconds = None if self.retry_after is None else math.ceil(self.retry_after)
        return EngineShed(retry_after_s=seconds, share=self.share)
