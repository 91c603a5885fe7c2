"""Open-loop callers in simulated time, with the live load's schedule, deadlines and retries."""

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from chaos.faults.actions import ChangeLoad
from chaos.history.history_events import GAP_DIGITS, RequestRecord
from chaos.history.request_outcomes import OutcomeReason
from chaos.load.arrival_schedule import ArrivalSchedule
from chaos.load.request_sender import FAULTS_OF_THE_CALLER, Arrival, RequestTemplate
from chaos.simulator.header_rules import NO_HEADERS
from chaos.simulator.proxied_request import ProxiedRequest, SentFields
from chaos.simulator.simulated_clock import SimulatedClock
from chaos.simulator.simulated_proxy import SimulatedProxy
from chaos.testbed.request_shape import RequestKind

_BUSY: Final = frozenset({429, 503})


class SimulatedCallers:
    """``begin`` sends the usual load; ``inject`` and ``revert`` change it. ``on_request`` gets each attempt.

    ``bytes_per_token`` of a prompt, where quotas count tokens.
    """

    def __init__(
        self,
        timeline: SimulatedClock,
        schedule: ArrivalSchedule,
        proxies: Mapping[str, SimulatedProxy],
        *,
        asking: RequestTemplate,
        bytes_per_token: int | None,
        seconds: float,
        on_request: Callable[[RequestRecord], None],
    ) -> None:
        self.timeline = timeline
        self.asking = asking
        self.large = schedule.load.large
        self.on_request = on_request
        self.waiting = 0
        self._schedule = schedule
        self._proxies = proxies
        self._until_s = timeline.began_s + seconds
        self._pulled: list[tuple[ChangeLoad, int]] = []
        self._orders = 0
        self.sessions: dict[str, str] = {}
        """Engines of strict sessions, as answers named them."""
        self._bytes_per_token = bytes_per_token
        self._estimates: dict[tuple[bool, int, int], float] = {}
        self._rng = random.Random(f"{schedule.seed} fewer")  # noqa: S311 -- repeatable traffic, no secret

    def begin(self) -> None:
        """Send the whole schedule."""
        self._follow(self._schedule.usual(), lambda: True)

    def stop(self) -> None:
        """Stop sending."""
        self._until_s = min(self._until_s, self.timeline.now_s)

    def inject(self, callers: ChangeLoad) -> None:
        """Apply a load change."""
        self._orders += 1
        order = (callers, self._orders)
        self._pulled.append(order)
        if callers.factor > 1:
            more = self._schedule.more(f"more{self._orders}", callers.factor, self._now_s())
            self._follow(more, lambda: order in self._pulled)

    def revert(self, callers: ChangeLoad) -> None:
        """Undo a load change; send its ``at_once`` requests now."""
        order = next((one for one in self._pulled if one[0] == callers), None)
        if order is not None:
            self._pulled.remove(order)
            for arrival in self._schedule.herd(f"herd{order[1]}", callers.at_once, self._now_s()):
                self._send(arrival, self.timeline.now_s, 1)

    def ended(self, arrival: Arrival, request: RequestRecord) -> None:
        """Handle an ended attempt; retry if due."""
        self.waiting -= 1
        self.on_request(request)
        attempts, backoff_s = self._retries()
        if request.ok or request.status in FAULTS_OF_THE_CALLER or request.try_number > attempts:
            return
        planned_s = self.timeline.now_s + backoff_s
        if planned_s <= self._until_s:
            self.timeline.at(planned_s, lambda: self._send(arrival, planned_s, request.try_number + 1))

    def headers(self, arrival: Arrival) -> Mapping[str, str]:
        """Headers of a request, by its group of callers."""
        return self.asking.group_headers.get(arrival.group, NO_HEADERS)

    def estimated_tokens(self, arrival: Arrival) -> float:
        """What quotas of tokens count: the body's bytes, and the answer that it asks for."""
        if self._bytes_per_token is None:
            return 0.0
        key = (arrival.streaming, arrival.prompt_tokens, arrival.max_tokens)
        known = self._estimates.get(key)
        if known is None:
            prompt = len(self.asking.body(arrival)) / self._bytes_per_token
            known = self._estimates[key] = prompt + arrival.max_tokens
        return known

    def _now_s(self) -> float:
        return max(0.0, self.timeline.now_s - self.timeline.began_s)

    def _retries(self) -> tuple[int, float]:
        """Current client retries and backoff; of several load changes the shortest backoff wins."""
        usual = self._schedule.retries
        said = [one for one, _ in self._pulled if one.attempts]
        waits = [one.backoff_s for one in said] + [usual.backoff_s] * (usual.attempts > 0 or not said)
        return usual.attempts + sum(one.attempts for one in said), min(waits)

    def _follow(self, arrivals: Iterator[Arrival], going: Callable[[], bool]) -> None:
        """Send each arrival when due."""
        arrival = next(arrivals, None)
        if arrival is None or not going():
            return
        at_s = self.timeline.began_s + arrival.at_s
        if at_s > self._until_s:
            return

        def due() -> None:
            if at_s <= self._until_s and going() and self._kept():
                self._send(arrival, at_s, 1)
            self._follow(arrivals, going)

        self.timeline.at(at_s, due)

    def _kept(self) -> bool:
        """Whether to send a request at reduced load."""
        share = 1.0
        for one, _ in self._pulled:
            share *= min(1.0, one.factor)
        return share >= 1.0 or self._rng.random() < share

    def _send(self, arrival: Arrival, planned_s: float, number: int) -> None:
        self.waiting += 1
        _Try(self, arrival, planned_s, number).send(self._proxies[arrival.target.name])


class _Try:
    """One attempt of one caller."""

    def __init__(self, callers: SimulatedCallers, arrival: Arrival, planned_s: float, number: int) -> None:
        self._callers = callers
        self._arrival = arrival
        self._planned_s = planned_s
        self._number = number
        self._status = 0
        self._refusal = self._fallback = ""
        self._first_s: float | None = None
        self._token_s: float | None = None
        self._gaps_s: list[float] = []
        self._tokens = 0
        self._over = False
        self._ask: ProxiedRequest | None = None

    def send(self, proxy: SimulatedProxy) -> None:
        arrival, timeline = self._arrival, self._callers.timeline
        patience = timeline.at(self._planned_s + self._callers.asking.deadline_s, lambda: self._give_up(proxy))
        self._patience = patience
        self._ask = proxy.send_request(
            self._id,
            self,
            RequestKind(arrival.batch, arrival.streaming, arrival.group in self._callers.large),
            prompt_tokens=arrival.prompt_tokens,
            max_tokens=arrival.max_tokens,
            sent=SentFields(
                session=arrival.session,
                kept_by=self._callers.sessions.get(arrival.session, ""),
                headers=self._callers.headers(arrival),
                estimated_tokens=self._callers.estimated_tokens(arrival),
            ),
        )

    @property
    def _id(self) -> str:
        name = self._arrival.request_id
        return name if self._number == 1 else f"{name}.{self._number}"

    def headers(self, status: int, *, refusal: str = "", fallback: str = "", session: str = "") -> None:
        self._status, self._refusal, self._fallback = status, refusal, fallback
        if session and self._arrival.session:
            self._callers.sessions[self._arrival.session] = session

    def tokens(self, total: int) -> None:
        now_s = self._callers.timeline.now_s
        if self._first_s is None:
            self._first_s = now_s - self._planned_s
        if self._token_s is not None:
            self._gaps_s.append(round(now_s - self._token_s, GAP_DIGITS))
        self._token_s, self._tokens = now_s, total

    def ended(self) -> None:
        if self._status == 200:
            self._tokens = (self._ask or self._arrival).max_tokens
            self._end(OutcomeReason.OK)
        else:
            self._end(OutcomeReason.SHED if self._status in _BUSY else OutcomeReason.HTTP_ERROR)

    def failed_inside(self) -> None:
        self._end(OutcomeReason.STREAM_ERROR)

    def broken(self) -> None:
        self._end(OutcomeReason.TRUNCATED if self._arrival.streaming else OutcomeReason.RESET)

    def _give_up(self, proxy: SimulatedProxy) -> None:
        if not self._over:
            if self._ask is not None:
                proxy.leave(self._ask)
            self._end(OutcomeReason.TIMEOUT)

    def _end(self, reason: OutcomeReason) -> None:
        if self._over:
            return
        self._over = True
        self._patience.cancel()
        arrival, timeline = self._arrival, self._callers.timeline
        self._callers.ended(
            arrival,
            RequestRecord(
                at_s=self._planned_s - timeline.began_s,
                request_id=self._id,
                question=arrival.request_id,
                try_number=self._number,
                proxy=arrival.target.name,
                streaming=arrival.streaming,
                batch=arrival.batch,
                group=arrival.group,
                lag_s=0.0,
                status=self._status,
                reason=reason,
                first_token_s=self._first_s,
                latency_s=timeline.now_s - self._planned_s,
                tokens=self._tokens,
                longest_gap_s=max(self._gaps_s, default=None),
                gaps_s=tuple(self._gaps_s),
                fallback=self._fallback,
                refusal=self._refusal,
                session=arrival.session,
            ),
        )
