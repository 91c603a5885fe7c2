"""What an agent sends on connection besides reports: for troubleshooting, not for decisions.

It is in the metadata of the stream, so that older agents and control planes are compatible.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from engine.watch_server import CERTIFICATE_KEY, CLOCK_KEY

_LATEST_UNIX_S: Final = 253_402_300_799.0
"""The end of the year 9999: the expiry of a certificate without one. Source: RFC 5280, 4.1.2.5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentMetadata:
    """How far the agent's clock is ahead of ours, and when its certificate expires; None: unknown."""

    clock_ahead_s: float | None = None
    certificate_begins_unix_s: float | None = None
    certificate_ends_unix_s: float | None = None


def read_agent_metadata(metadata: Iterable[tuple[str, str | bytes]], now_unix_s: float) -> AgentMetadata:
    """The values in newly received metadata; impossible ones are None."""
    said = dict(metadata)
    clock = _moment(said.get(CLOCK_KEY))
    first, _, second = str(said.get(CERTIFICATE_KEY, "")).partition(" ")
    begins, ends = _moment(first), _moment(second)
    known = begins is not None and ends is not None and begins < ends
    return AgentMetadata(
        clock_ahead_s=None if clock is None else round(clock - now_unix_s, 3),
        certificate_begins_unix_s=begins if known else None,
        certificate_ends_unix_s=ends if known else None,
    )


def _moment(text: str | bytes | None) -> float | None:
    try:
        moment = float(text or "")
    except ValueError:
        return None
    return moment if math.isfinite(moment) and 0 <= moment <= _LATEST_UNIX_S else None
