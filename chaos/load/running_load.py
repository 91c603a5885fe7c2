"""The load of a running experiment: the usual arrivals plus load changes."""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from chaos.faults.actions import ChangeLoad
from chaos.history.event_sources import request_record
from chaos.history.history_events import RequestRecord
from chaos.load.arrival_schedule import ArrivalSchedule
from chaos.load.request_sender import Arrival, CallerRetries, RequestSender, RequestTemplate


@dataclass(slots=True, kw_only=True, eq=False)
class _Pulled:
    """An active load change; ``more`` sends its extra requests."""

    callers: ChangeLoad
    number: int
    more: asyncio.Task[None] | None = None


class RunningLoad:
    """``await run()`` sends for ``seconds`` or until ``stop``, and waits for every answer.

    ``inject`` and ``revert`` change the load from then on; several changes add up. ``on_request`` is called as
    each attempt ends. Times count from ``began_s`` on the monotonic clock.
    """

    def __init__(
        self,
        schedule: ArrivalSchedule,
        asking: RequestTemplate,
        on_request: Callable[[RequestRecord], None],
        *,
        began_s: float,
        seconds: float,
        stop: asyncio.Event | None = None,
    ) -> None:
        self._schedule = schedule
        self._began_s = began_s
        self._sender = RequestSender(
            asking,
            lambda outcome: on_request(request_record(outcome, began_s)),
            began_s=began_s,
            until_s=seconds,
            stop=stop,
            retries=self.retries,
        )
        self._sending = False
        self._pulled: list[_Pulled] = []
        self._orders = 0
        self._rng = random.Random(f"{schedule.seed} fewer")  # noqa: S311 -- repeatable traffic, no secret

    async def run(self) -> None:
        """Send the load."""
        async with self._sender:
            self._sending = True
            for one in self._pulled:
                self._ask_more(one)
            try:
                await self._sender.follow(self._schedule.usual(), keep=self._kept)
                # A trace may end early, and load changes may still add requests.
                await self._sender.ended()
            finally:
                self._sending = False

    def retries(self) -> CallerRetries:
        """Current client retries; of several load changes the shortest backoff wins."""
        usual = self._schedule.retries
        said = [one.callers for one in self._pulled if one.callers.attempts]
        waits = [one.backoff_s for one in said] + [usual.backoff_s] * (usual.attempts > 0 or not said)
        return CallerRetries(attempts=usual.attempts + sum(one.attempts for one in said), backoff_s=min(waits))

    def inject(self, callers: ChangeLoad) -> None:
        """Apply a load change."""
        self._orders += 1
        one = _Pulled(callers=callers, number=self._orders)
        self._pulled.append(one)
        if self._sending:
            self._ask_more(one)

    def revert(self, callers: ChangeLoad) -> None:
        """Undo a load change; send its ``at_once`` requests now."""
        one = next((one for one in self._pulled if one.callers == callers), None)
        if one is None:
            return
        self._pulled.remove(one)
        if one.more is not None:
            one.more.cancel()
        if self._sending:
            for arrival in self._schedule.herd(f"herd{one.number}", callers.at_once, self._now_s()):
                self._sender.send(arrival)

    def _ask_more(self, one: _Pulled) -> None:
        if one.callers.factor > 1:
            more = self._schedule.more(f"more{one.number}", one.callers.factor, max(0.0, self._now_s()))
            one.more = self._sender.start(more, keep=self._kept)

    def _kept(self, _: Arrival) -> bool:
        """Whether to send a request at reduced load."""
        share = 1.0
        for one in self._pulled:
            share *= min(1.0, one.callers.factor)
        return share >= 1.0 or self._rng.random() < share

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s
