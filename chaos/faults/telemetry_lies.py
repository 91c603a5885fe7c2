"""A proxy that is not to be believed: what it says of its calls is not what happened."""

from typing import ClassVar, Literal

from chaos.faults.fault import Aim, Fault
from chaos.faults.pulls import Pull, Telemetry
from policies.document import described


class TelemetryLies(Fault):
    """Every call in the proxy's access logs and load reports is said to have ended in the same way."""

    aim: ClassVar[Aim] = Aim.PROXIES
    incident: ClassVar[str] = "One proxy with a broken clock and a full table reported every call as failed."
    breaks: ClassVar[bool] = False

    kind: Literal["telemetry_lies"] = described("telemetry_lies", "Kind of the fault.")
    says: Literal["all-failed", "all-good"] = described("all-failed", "How every call is said to have ended.")

    def pulls(self, target: str) -> tuple[Pull, ...]:
        return (Telemetry(proxy=target, says=self.says),)
