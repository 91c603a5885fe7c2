"""One call in flight, as its HTTP handler and the engine share it."""

import asyncio
from dataclasses import dataclass, field

from aiohttp.web_protocol import RequestHandler

from chaos.fake_engine.answers import Generation
from chaos.fake_engine.faults import Serve


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """A call in flight, seen from its HTTP handler."""

    call_id: int
    generation: Generation
    plan: Serve
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

    async def news(self, seen: int) -> None:
        """Wait until there are more than ``seen`` tokens, or the GPU is done with it."""
        while self.tokens <= seen and self.finished_at_s is None:
            self.changed.clear()
            await self.changed.wait()
