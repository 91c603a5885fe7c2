"""An engine that is ill and well in turn, faster than anybody should follow."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from chaos.fake_engine.faults import Flap as EngineFlap
from chaos.faults.crash import Crash
from chaos.faults.engine_error import EngineError
from chaos.faults.fault import Fault
from chaos.faults.gray_failure import GrayFailure
from chaos.faults.hang import Hang
from chaos.faults.hang_mid_stream import HangMidStream
from chaos.faults.kv_cache_full import KvCacheFull
from chaos.faults.lying_health import LyingHealth
from chaos.faults.pacing import Pacing
from chaos.faults.pulls import BreakEngine, Pull
from chaos.faults.reset_mid_stream import ResetMidStream
from chaos.faults.shed import Shed
from chaos.faults.slow import Slow
from policies.document import described
from policies.quantity import Duration

Trouble = Annotated[
    Crash
    | EngineError
    | GrayFailure
    | Hang
    | HangMidStream
    | KvCacheFull
    | LyingHealth
    | Pacing
    | ResetMidStream
    | Shed
    | Slow,
    Field(discriminator="kind"),
]
"""What an engine can be ill with in turn."""


class Flap(Fault):
    """One fault for a part of each period, health for the rest; a period begins ill."""

    incident: ClassVar[str] = "A replica crashed, came back, took load and crashed again, for an hour."

    kind: Literal["flap"] = described("flap", "Kind of the fault.")
    fault: Trouble = described(Crash(), "What comes and goes: its kind and its settings.")
    period: Duration = described(2.0, "From one beginning to the next.", unit="duration", ge=0.1, le=600)
    bad_share: float = described(0.5, "Share of the period in which it is ill.", gt=0, lt=1)

    def pulls(self, target: str) -> tuple[Pull, ...]:
        flap = EngineFlap(fault=self.fault.trouble(), period_s=self.period, bad_share=self.bad_share)
        return (BreakEngine(engine=target, fault=flap),)
