"""Events as lines of JSON, and back."""

from typing import Annotated, Final

from pydantic import ConfigDict, Field, TypeAdapter

from chaos.history.history_events import HistoryEvent

_EVENTS: Final[TypeAdapter[HistoryEvent]] = TypeAdapter(
    Annotated[HistoryEvent, Field(discriminator="event")],
    # Nothing that is measured is NaN, and one would make every sum one.
    config=ConfigDict(allow_inf_nan=False),
)


class HistoryError(Exception):
    """A history cannot be written or read; the message begins with the file."""


def as_line(event: HistoryEvent) -> bytes:
    """The event as one line, with its end."""
    # Mappings may be read-only ones, which pydantic does not know and writes as the dicts they stand for.
    return _EVENTS.dump_json(event, fallback=dict, warnings="none") + b"\n"


def from_line(line: bytes) -> HistoryEvent:
    """The event of one line, whatever else it says; pydantic's ``ValidationError`` when it is none of ours."""
    return _EVENTS.validate_json(line)
