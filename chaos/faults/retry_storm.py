"""Callers that try again, all of them, at once and often: the load that a failure makes by itself."""

from typing import ClassVar, Literal

from chaos.faults.fault import Aim, Fault
from chaos.faults.pulls import Callers, Pull
from policies.document import described
from policies.quantity import Duration


class RetryStorm(Fault):
    """Whoever gets no good answer asks again; the proxies cannot tell that from new requests."""

    aim: ClassVar[Aim] = Aim.CLIENTS
    incident: ClassVar[str] = "A client library with five tries and no budget met a fleet that shed a tenth of it."
    breaks: ClassVar[bool] = False

    kind: Literal["retry_storm"] = described("retry_storm", "Kind of the fault.")
    attempts: int = described(5, "Tries after the first, for each request.", ge=1, le=20)
    backoff: Duration = described(0.1, "Wait before each of them.", unit="duration", ge=0, le=60)
    factor: float = described(1.0, "How many times the usual load besides.", gt=0, le=100)

    def pulls(self, target: str) -> tuple[Pull, ...]:  # noqa: ARG002 -- all callers are one target
        return (Callers(factor=self.factor, attempts=self.attempts, backoff_s=self.backoff),)
