"""An engine that refuses at once: it looks idle, and attracts what it refuses."""

import math
from typing import ClassVar, Literal

from chaos.fake_engine.faults import Shed as EngineShed
from chaos.fake_engine.faults import SteadyFault
from chaos.faults.engine_trouble import EngineTrouble
from policies.document import described
from policies.quantity import Duration


class Shed(EngineTrouble):
    """Calls are refused with 503 before any work."""

    incident: ClassVar[str] = (
        "An admission limit left over from a test turned every call away within milliseconds."
    )

    kind: Literal["shed"] = described("shed", "Kind of the fault.")
    retry_after: Duration | None = described(
        1.0,
        "The Retry-After header, in whole seconds rounded up; null leaves it out.",
        unit="duration",
        ge=0,
        le=3600,
    )
    share: float = described(1.0, "Share of the calls that are refused.", gt=0, le=1)

    def trouble(self) -> SteadyFault:
        seconds = None if self.retry_after is None else math.ceil(self.retry_after)
        return EngineShed(retry_after_s=seconds, share=self.share)
