"""An ill engine that looks well: probes succeed, work fails. The other direction is ``lying_health``."""

from typing import ClassVar, Literal

from chaos.fake_engine.engine_faults import EngineGrayFailure, SteadyEngineFault
from chaos.faults.cluster_chaos import INSIDE_ENGINE
from chaos.faults.simulated_engine_fault import SimulatedEngineFault
from policies.document import documented_field


class GrayFailureFault(SimulatedEngineFault):
    """/health is well and questions for a token or so are answered; longer ones are refused at once.

    Source: Huang et al., "Gray Failure: The Achilles' Heel of Cloud-Scale Systems" (HotOS 2017): the failure that
    its observers cannot see and its users can.
    """

    incident: ClassVar[str] = (
        "All probes were green while every real request failed in milliseconds, and drew more."
    )
    not_in_clusters: ClassVar[str] = INSIDE_ENGINE

    kind: Literal["gray_failure"] = documented_field("gray_failure", "Kind of the fault.")
    status: int = documented_field(500, "Status of the refusal.", ge=500, le=599)
    honest_tokens: int = documented_field(
        1, "Calls for up to so many tokens are served.", unit="tokens", ge=0, le=10_000
    )
    share: float = documented_field(1.0, "Share of the longer calls that are refused.", gt=0, le=1)

    def engine_fault(self) -> SteadyEngineFault:
        return EngineGrayFailure(status=self.status, honest_tokens=self.honest_tokens, share=self.share)
