"""A broken engine that looks healthy: probes succeed, real requests fail. ``lying_health`` is the opposite."""

from typing import ClassVar, Literal

from chaos.fake_engine.engine_faults import EngineGrayFailure, SteadyEngineFault
from chaos.faults.cluster_chaos import INSIDE_ENGINE
from chaos.faults.simulated_engine_fault import SimulatedEngineFault
from policies.document import documented_field


class GrayFailureFault(SimulatedEngineFault):
    """Answer /health and short probes, but refuse longer calls at once.

    Source: Huang et al., "Gray Failure: The Achilles' Heel of Cloud-Scale Systems" (HotOS 2017): users see the
    failure, observers do not.
    """

    incident: ClassVar[str] = (
        "All probes passed while every real request failed within milliseconds, which attracted more."
    )
    not_in_clusters: ClassVar[str] = INSIDE_ENGINE

    kind: Literal["gray_failure"] = documented_field("gray_failure", "Kind of the fault.")
    status: int = documented_field(500, "HTTP status of the refusal.", ge=500, le=599)
    honest_tokens: int = documented_field(1, "Longest call that is still served.", unit="tokens", ge=0, le=10_000)
    share: float = documented_field(1.0, "Share of longer calls that are refused.", gt=0, le=1)

    def engine_fault(self) -> SteadyEngineFault:
        return EngineGrayFailure(status=self.status, honest_tokens=self.honest_tokens, share=self.share)
