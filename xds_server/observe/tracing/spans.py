"""Traces as values: a tree of spans with names and attributes from closed sets.

Text may come from peers and policies, so it is truncated and stripped of control characters. ``docs/tracing.md``
describes every name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

Value = str | int | float | tuple[str, ...]

LONGEST_TEXT: Final = 500
"""Maximum characters of an attribute."""

POOL: Final = "switchgear.pool"
ENGINE: Final = "switchgear.engine"
ZONE: Final = "switchgear.zone"
CAUSE: Final = "switchgear.cause"
BEFORE: Final = "switchgear.before"
AFTER: Final = "switchgear.after"
REASON: Final = "switchgear.reason"
RULE: Final = "switchgear.rule"
PLACE: Final = "switchgear.place"
EVENT: Final = "switchgear.event"
DECISIONS: Final = "switchgear.decisions"
REQUESTS: Final = "switchgear.requests"
VERSION: Final = "switchgear.policies.version"
DIGEST: Final = "switchgear.policies.digest"
AUTHOR: Final = "switchgear.policies.author"
TYPE: Final = "switchgear.xds.type"
PROXIES: Final = "switchgear.proxies"
UNSENT: Final = "switchgear.proxies.unsent"
UNCONFIRMED: Final = "switchgear.proxies.unconfirmed"
REFUSED: Final = "switchgear.proxies.refused"
FIRST_S: Final = "switchgear.first_seconds"
SLOWEST: Final = "switchgear.slowest"
SLOWEST_S: Final = "switchgear.slowest_seconds"
PROXY: Final = "switchgear.proxy"
RESOURCES: Final = "switchgear.resources"

ATTRIBUTES: Final = frozenset(
    {
        POOL, ENGINE, ZONE, CAUSE, BEFORE, AFTER, REASON, RULE, PLACE, EVENT, DECISIONS, REQUESTS, VERSION, DIGEST,
        AUTHOR, TYPE, PROXIES, UNSENT, UNCONFIRMED, REFUSED, FIRST_S, SLOWEST, SLOWEST_S, PROXY, RESOURCES,
    }
)  # fmt: skip
"""All attributes."""

CHANGES: Final = ("policies", "ladder", "health", "cut", "trial")
"""Kinds of traces, most important first; named as in ``switchgear get events``."""

STAGES: Final = ("decide", "translate", "assemble")

NAMES: Final = frozenset(
    {*(f"{change} change" for change in CHANGES), *STAGES}
    | {"offered", "detect", "decision", "push", "ack", "refused", "last request"}
)
"""All span names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Work from ``start_ns`` to ``end_ns`` (Unix time); ``error`` is set if it failed.

    ``children``: its parts.
    """

    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value]
    error: str = ""
    children: tuple["Span", ...] = ()

    @property
    def count(self) -> int:
        """Number of spans in this tree."""
        return 1 + sum(child.count for child in self.children)


def attribute_text(text: str) -> str:
    """Text as an attribute: printable, and truncated to ``LONGEST_TEXT`` characters."""
    if not text.isprintable():
        text = "".join(one if one.isprintable() else " " for one in text)
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 3]}..."


def span_attributes(*pairs: tuple[str, Value]) -> dict[str, Value]:
    """Attributes from these pairs, without empty values."""
    return {
        name: attribute_text(value) if isinstance(value, str) else value
        for name, value in pairs
        if value not in ("", ())
    }
