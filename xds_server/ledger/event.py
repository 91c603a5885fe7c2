"""One ledger line: a transition with its time and the policy location behind it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from pydantic import TypeAdapter, ValidationError

from policies.merge import setter
from policies.model import PolicySet
from xds_server.decide.diff.change import Change, ChangeKind, Subject

BUILT_IN: Final = "built-in default"

FORMAT: Final = 1
"""Begins each line, because files outlive the versions that write them; a line without it is of format 1."""

_NO_NUMBERS: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One transition of one subject.

    ``at_s`` is monotonic seconds of this process, ``at_unix_s`` the wall clock. ``rule`` is the policy field
    behind it, and ``place`` the ``file:line`` that set the field, or the built-in default. ``until_unix_s`` is
    when it is evaluated again at the latest. ``times`` such transitions, the first at ``first_unix_s``, are stored
    as one, so that flapping does not displace other events. ``requests`` names the newest requests that the engine
    had failed by then, by ``x-request-id``.
    """

    number: int
    at_s: float
    at_unix_s: float
    kind: ChangeKind
    subject: Subject
    before: str
    after: str
    evidence: str
    rule: str = ""
    place: str = ""
    returns: str = ""
    until_unix_s: float | None = None
    alarm: bool = False
    numbers: Mapping[str, float] = field(default_factory=lambda: _NO_NUMBERS)
    times: int = 1
    first_unix_s: float = 0.0
    requests: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """One moment on both clocks, in seconds."""

    s: float
    unix_s: float

    def unix_of(self, moment_s: float) -> float:
        """The Unix time of a monotonic time."""
        return self.unix_s + moment_s - self.s

    def monotonic_of(self, moment_unix_s: float) -> float:
        """The monotonic time of a Unix time."""
        return self.s + moment_unix_s - self.unix_s


def event_of(change: Change, now: ClockReading, policies: PolicySet | None, number: int = 0) -> Event:
    """The change as a ledger event."""
    return Event(
        number=number,
        at_s=now.s,
        at_unix_s=round(now.unix_s, 3),
        kind=change.kind,
        subject=change.subject,
        before=change.before,
        after=change.after,
        evidence=change.reason,
        rule=change.rule,
        place=place_of(change.rule, change.subject.pool, policies),
        returns=change.returns,
        until_unix_s=None if change.until_s is None else round(now.unix_of(change.until_s), 3),
        alarm=change.alarm,
        numbers=change.numbers,
        first_unix_s=round(now.unix_s, 3),
    )


def place_of(rule: str, pool: str, policies: PolicySet | None) -> str:
    """``file:line`` that set the field ``rule`` for ``pool``; empty without a field."""
    kind, _, path = rule.partition(".")
    if not path or policies is None:
        return ""
    if kind == "ResiliencePolicy":
        name = setter(policies, pool, path)
        origin = policies.origins.get(f"{kind}/{name}.{path}") if name is not None else None
    else:
        origin = policies.origins.get(f"{kind}/{pool}.{path}")
    return BUILT_IN if origin is None else f"{origin.file}:{origin.line}"


_ADAPTER: Final = TypeAdapter(Event)
_RENAMED: Final[Mapping[tuple[ChangeKind, str], str]] = MappingProxyType(
    {
        (ChangeKind.KEPT, "free to leave"): "ejectable",
        (ChangeKind.KEPT, "kept in"): "kept in rotation",
        (ChangeKind.CUT, "not cut"): "off",
        (ChangeKind.CUT, "cut"): "on",
        (ChangeKind.STRAGGLER, "in step"): "normal",
        (ChangeKind.DEMAND, "room"): "below capacity",
        (ChangeKind.DEMAND, "full"): "above capacity",
        (ChangeKind.ZONE, "there"): "available",
    }
)
"""Values in lines of earlier versions."""
_BEGINS: Final = '{"format":'


def is_later(line: str) -> bool:
    """Whether a line has a format that this version does not read."""
    number = line.removeprefix(_BEGINS).partition(",")[0]
    return line.startswith(_BEGINS) and number.isdigit() and number != str(FORMAT)


def as_line(event: Event) -> str:
    """The event as one line of JSON, without empty fields."""
    text = _ADAPTER.dump_json(event, exclude_defaults=True, fallback=dict, warnings="none").decode()
    return f"{_BEGINS}{FORMAT},{text.removeprefix('{')}"


def from_line(line: str, now: ClockReading) -> Event | None:
    """The event of one line, its monotonic time derived from ``now``; None if it is not a known event."""
    if is_later(line):
        return None
    try:
        event = _ADAPTER.validate_json(line)
    except ValidationError:
        return None
    until = event.at_unix_s if event.first_unix_s == 0.0 else event.first_unix_s
    return replace(
        event,
        at_s=now.monotonic_of(event.at_unix_s),
        first_unix_s=until,
        before=_RENAMED.get((event.kind, event.before), event.before),
        after=_RENAMED.get((event.kind, event.after), event.after),
    )
