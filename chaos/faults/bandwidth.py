"""A narrow link: everything passes, slowly, and waits for what is before it."""

from typing import ClassVar, Literal

from chaos.faults.fault import Fault
from chaos.faults.pulls import Pull, Wire
from policies.document import described


class Bandwidth(Fault):
    """All connections between proxies and an engine share so many bytes per second, each way."""

    incident: ClassVar[str] = "A host copied a model from a neighbour through the link that serves requests."
    breaks: ClassVar[bool] = False

    kind: Literal["bandwidth"] = described("bandwidth", "Kind of the fault.")
    bytes_per_second: float = described(
        4000.0,
        "What passes, each way.",
        why="simulated answers are small: a few hundred bytes each",
        unit="bytes/s",
        ge=100,
    )

    def pulls(self, target: str) -> tuple[Pull, ...]:
        return (Wire(end="engine", target=target, bytes_per_s=self.bytes_per_second),)
