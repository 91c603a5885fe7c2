"""An engine that fails and recovers faster than ejection should follow."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from chaos.fake_engine.engine_faults import EngineFlap
from chaos.faults.actions import FaultAction, SetEngineFault
from chaos.faults.crash import CrashFault
from chaos.faults.engine_error import EngineErrorFault
from chaos.faults.fault import Fault
from chaos.faults.gray_failure import GrayFailureFault
from chaos.faults.hang import HangFault
from chaos.faults.hang_mid_stream import HangMidStreamFault
from chaos.faults.kv_cache_full import KvCacheFullFault
from chaos.faults.lying_health import LyingHealthFault
from chaos.faults.pacing_fault import PacingFault
from chaos.faults.reset_mid_stream import ResetMidStreamFault
from chaos.faults.shed import ShedFault
from chaos.faults.slow import SlowFault
from policies.document import documented_field
from policies.quantity import Duration

FlappingFault = Annotated[
    CrashFault
    | EngineErrorFault
    | GrayFailureFault
    | HangFault
    | HangMidStreamFault
    | KvCacheFullFault
    | LyingHealthFault
    | PacingFault
    | ResetMidStreamFault
    | ShedFault
    | SlowFault,
    Field(discriminator="kind"),
]
"""Faults that can flap."""


class FlapFault(Fault):
    """Apply one fault for the first part of each period; the engine is healthy for the rest."""

    incident: ClassVar[str] = "A replica crashed, restarted, took load and crashed again for an hour."
    not_in_clusters: ClassVar[str] = (
        "no fault can flap within one experiment; a Schedule repeats at most once a minute"
    )

    kind: Literal["flap"] = documented_field("flap", "Kind of the fault.")
    fault: FlappingFault = documented_field(CrashFault(), "Kind and settings of the flapping fault.")
    period: Duration = documented_field(2.0, "Time from one start to the next.", unit="duration", ge=0.1, le=600)
    bad_share: float = documented_field(0.5, "Share of each period with the fault.", gt=0, lt=1)

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        flap = EngineFlap(fault=self.fault.engine_fault(), period_s=self.period, bad_share=self.bad_share)
        return (SetEngineFault(engine=target, fault=flap),)
