"""A proxy that is no longer heard of: its access logs and load reports reach nobody."""

from typing import ClassVar, Literal

from chaos.faults.fault import Aim, Fault
from chaos.faults.pulls import Pull, Telemetry
from policies.document import described


class TelemetryLost(Fault):
    """Configuration still reaches the proxy; nothing of what it sees reaches the control plane."""

    aim: ClassVar[Aim] = Aim.PROXIES
    incident: ClassVar[str] = (
        "A collector was overloaded and refused streams for an hour; proxies went on serving."
    )
    breaks: ClassVar[bool] = False

    kind: Literal["telemetry_lost"] = described("telemetry_lost", "Kind of the fault.")

    def pulls(self, target: str) -> tuple[Pull, ...]:
        return (Telemetry(proxy=target, lost=True),)
