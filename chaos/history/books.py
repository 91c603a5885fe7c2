"""What engines wrote in their books, as events of a history. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from chaos.fake_engine.book import Outcome as Fate
from chaos.history.events import Attempt

OURS: Final = "load-"
"""How the ids of requests begin that our load sends; probes have none, and others are not judged."""


def attempts(engine: str, book: Mapping[str, Any], began_s: float) -> Iterator[Attempt]:
    """The calls of our requests in an engine's book; ``began_s`` is the monotonic time of ``at_s`` 0."""
    for call in book["calls"]:
        if not str(call["request_id"]).startswith(OURS):
            continue
        started_s = call["started_at_s"]
        yield Attempt(
            at_s=float(call["arrived_at_s"]) - began_s,
            engine=engine,
            request_id=str(call["request_id"]),
            number=int(call["attempt"]),
            streaming=bool(call["streaming"]),
            fate=Fate(call["outcome"]),
            reason=str(call["reason"]),
            closed_at_s=float(call["closed_at_s"]) - began_s,
            started_at_s=None if started_s is None else float(started_s) - began_s,
            slot_s=float(call["slot_s"]),
            tokens_generated=int(call["tokens_generated"]),
            tokens_sent=int(call["tokens_sent"]),
        )
