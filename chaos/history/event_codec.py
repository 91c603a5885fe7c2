"""Events to lines of JSON and back."""

from typing import Annotated, Final

from pydantic import ConfigDict, Field, TypeAdapter

from chaos.history.history_events import HistoryEvent

_EVENTS: Final[TypeAdapter[HistoryEvent]] = TypeAdapter(
    Annotated[HistoryEvent, Field(discriminator="event")],
    # NaN is never a valid measurement, and would spoil every sum.
    config=ConfigDict(allow_inf_nan=False),
)


class HistoryError(Exception):
    """A history cannot be written or read; the message starts with the file."""


def as_line(event: HistoryEvent) -> bytes:
    """The event as one line with a newline."""
    # Mappings may be read-only types, which pydantic does not know but serialises as dicts.
    return _EVENTS.dump_json(event, fallback=dict, warnings="none") + b"\n"


def from_line(line: bytes) -> HistoryEvent:
    """Parse one line, ignoring unknown fields; raises pydantic's ``ValidationError`` if it is not an event."""
    return _EVENTS.validate_json(line)
