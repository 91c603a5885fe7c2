"""Unanswered responses of one resource type, with their limit and the single retry that may exceed it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from xds_server.model.snapshot import Resource
from xds_server.xds.full_content import FullContent


@dataclass(slots=True, kw_only=True)
class PendingResponse:
    """One response in flight: resources that the peer will hold if it accepts; ``None``: removed.

    ``adds``: the response contains a name that the peer did not have. ``whole``: ``content`` is all of it.
    """

    nonce: str
    sent_at_s: float
    content: Mapping[str, Resource | None]
    resources: tuple[Resource, ...]
    adds: bool
    whole: FullContent | None = None
    reported_stuck: bool = False


class AnsweredResponse(NamedTuple):
    """The response that a nonce answers, and earlier ones that will not be answered."""

    response: PendingResponse
    passed_over: tuple[PendingResponse, ...]


@dataclass(slots=True, kw_only=True)
class InFlight:
    """Unanswered responses, oldest first, at most ``limit``.

    ``may_exceed`` allows one more response: the retry. One retry until the next answer (``tried_again``).
    """

    limit: int
    responses: list[PendingResponse] = field(default_factory=list)
    last_nonce: str = ""
    may_exceed: bool = False
    tried_again: bool = False

    @property
    def is_full(self) -> bool:
        """Whether the next response must wait for an answer."""
        return len(self.responses) >= self.limit and not self.may_exceed

    def carries(self, name: str) -> bool:
        """Whether some response in flight changes this name."""
        return any(name in response.content for response in self.responses)

    def has_nonce(self, nonce: str) -> bool:
        """Whether this nonce answers a response in flight."""
        return any(response.nonce == nonce for response in self.responses)

    def outcome(self, known: Mapping[str, Resource]) -> dict[str, Resource]:
        """Resources of a peer with ``known`` once it has accepted all responses in flight."""
        content: dict[str, Resource | None] = dict(known)
        for response in self.responses:
            content.update(response.content)
        return {name: item for name, item in content.items() if item is not None}

    def add(self, response: PendingResponse) -> None:
        """Record a sent response."""
        self.responses.append(response)
        self.last_nonce = response.nonce
        self.may_exceed = False

    def answer(self, nonce: str) -> AnsweredResponse | None:
        """Remove the response with this nonce and all earlier ones; ``None`` if unknown."""
        for index, response in enumerate(self.responses):
            if response.nonce == nonce:
                answered = AnsweredResponse(response=response, passed_over=tuple(self.responses[:index]))
                del self.responses[: index + 1]
                self.may_exceed = self.tried_again = False
                return answered
        return None

    def try_again(self) -> bool:
        """Allow one response above the limit; returns whether this is the first since the last answer."""
        if self.tried_again:
            return False
        self.may_exceed = self.tried_again = True
        return True

    def newly_stuck(self, now_s: float, stuck_after_s: float) -> Iterator[PendingResponse]:
        """Responses that have waited this long for an answer, each once."""
        for response in self.responses:
            if not response.reported_stuck and now_s - response.sent_at_s >= stuck_after_s:
                response.reported_stuck = True
                yield response
