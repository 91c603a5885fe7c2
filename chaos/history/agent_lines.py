"""What an engine's agent detected, from its log in JSON. Pure."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from chaos.history.events import Detected


class _Line(BaseModel):
    """As much of a line as is read here."""

    model_config = ConfigDict(extra="ignore")

    event: Literal["verdict"]
    timestamp: datetime
    now: str
    evidence: str = ""


def detections(engine: str, lines: Iterable[str], began_unix_s: float) -> Iterator[Detected]:
    """The judgements in these lines, without everything else; ``began_unix_s`` is the wall clock at ``at_s`` 0."""
    for line in lines:
        try:
            said = _Line.model_validate_json(line)
        except ValidationError:
            continue  # something else that an agent has to say
        at_s = said.timestamp.timestamp() - began_unix_s
        yield Detected(at_s=at_s, engine=engine, verdict=said.now, evidence=said.evidence)
