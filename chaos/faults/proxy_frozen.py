"""A proxy that stands still with all the requests it holds."""

from typing import ClassVar, Literal

from chaos.faults.fault import Aim, Fault
from chaos.faults.pulls import Freeze, Part, Pull
from policies.document import described


class ProxyFrozen(Fault):
    """SIGSTOP; callers of this proxy wait, and its share of every limit stays in its hands. Healing is SIGCONT."""

    aim: ClassVar[Aim] = Aim.PROXIES
    incident: ClassVar[str] = "A gateway stood still in an uninterruptible write of its logs."
    breaks: ClassVar[bool] = False

    kind: Literal["proxy_frozen"] = described("proxy_frozen", "Kind of the fault.")

    def pulls(self, target: str) -> tuple[Pull, ...]:
        return (Freeze(part=Part.PROXY, target=target),)
