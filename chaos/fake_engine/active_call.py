"""One running call, shared by its HTTP handler and the engine."""

import asyncio
from dataclasses import dataclass, field

from aiohttp.web_protocol import RequestHandler

from chaos.fake_engine.call_log import CallOutcome, CallRecord
from chaos.fake_engine.engine_faults import ServeCall
from chaos.fake_engine.openai_api import Generation
from chaos.fake_engine.simulated_gpu import SlotUse


@dataclass(slots=True, kw_only=True, eq=False)
class ActiveCall:
    """A running call."""

    call_id: int
    generation: Generation
    plan: ServeCall
    request_id: str
    attempt: int
    path: str
    connection: RequestHandler
    arrived_at_s: float
    stopped_before_s: float
    rank: int = 0
    tokens: int = 0
    tokens_sent: int = 0
    finished_at_s: float | None = None
    first_token_at_s: float | None = None
    newest_token_at_s: float = 0.0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def job_tokens(self) -> int:
        """Tokens the GPU will generate: fewer than requested if the connection is to be reset."""
        asked = self.generation.max_tokens
        return asked if self.plan.reset_after is None else min(asked, self.plan.reset_after)

    async def wait_for_tokens(self, seen: int) -> None:
        """Wait for more than ``seen`` tokens, or the end of the call."""
        while self.tokens <= seen and self.finished_at_s is None:
            self.changed.clear()
            await self.changed.wait()

    def record(
        self, use: SlotUse, outcome: CallOutcome, reason: str, *, at_s: float, stopped_s: float
    ) -> CallRecord:
        """Log record of the call closed at ``at_s``; ``stopped_s`` is the GPU's total stopped time."""
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
            prompt_tokens=use.prompt_tokens,
            cached_tokens=use.cached_tokens,
        )
