"""One call in flight, as its HTTP handler and the engine share it."""

import asyncio
from dataclasses import dataclass, field

from aiohttp.web_protocol import RequestHandler

from chaos.fake_engine.call_log import CallOutcome, CallRecord
from chaos.fake_engine.engine_faults import ServeCall
from chaos.fake_engine.openai_api import Generation
from chaos.fake_engine.simulated_gpu import SlotUse


@dataclass(slots=True, kw_only=True, eq=False)
class ActiveCall:
    """A call in flight, seen from its HTTP handler."""

    call_id: int
    generation: Generation
    plan: ServeCall
    request_id: str
    attempt: int
    path: str
    connection: RequestHandler
    arrived_at_s: float
    stopped_before_s: float
    tokens: int = 0
    tokens_sent: int = 0
    finished_at_s: float | None = None
    first_token_at_s: float | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def job_tokens(self) -> int:
        """Tokens the GPU will make: fewer than asked where the connection is to be reset on the way."""
        asked = self.generation.max_tokens
        return asked if self.plan.reset_after is None else min(asked, self.plan.reset_after)

    async def wait_for_tokens(self, seen: int) -> None:
        """Wait until there are more than ``seen`` tokens, or the GPU is done with it."""
        while self.tokens <= seen and self.finished_at_s is None:
            self.changed.clear()
            await self.changed.wait()

    def record(
        self, use: SlotUse, outcome: CallOutcome, reason: str, *, at_s: float, stopped_s: float
    ) -> CallRecord:
        """What is booked of it when it is closed at ``at_s``; the GPU has stood still for ``stopped_s`` in all."""
        return CallRecord(
            request_id=self.request_id,
            attempt=self.attempt,
            path=self.path,
            streaming=self.generation.streaming,
            outcome=outcome,
            reason=reason,
            arrived_at_s=self.arrived_at_s,
            closed_at_s=at_s,
            started_at_s=use.started_at_s,
            slot_s=use.slot_s,
            stuck_s=max(0.0, stopped_s - self.stopped_before_s),
            tokens_asked=self.generation.max_tokens,
            tokens_generated=use.tokens,
            tokens_sent=self.tokens_sent,
        )
