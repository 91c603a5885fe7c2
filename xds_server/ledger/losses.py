"""Which signals of which proxies are missing: silence is an event, never evidence against an engine."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from xds_server.decide.changes.change import Change, ChangeKind, Subject

Lost = Mapping[str, frozenset[str]]
"""By signal, the connected proxies of which it is missing."""

NOTHING_LOST: Final[Lost] = MappingProxyType({})


def loss_changes(before: Lost, now: Lost) -> Iterator[Change]:
    """Who fell silent, and who is no longer missed: heard again, or gone altogether."""
    for signal in sorted(before.keys() | now.keys()):
        name = f"{signal.replace('_', ' ')}s"
        was, lost = before.get(signal, frozenset()), now.get(signal, frozenset())
        for node in sorted(was ^ lost):
            missing = node in lost
            yield Change(
                kind=ChangeKind.TELEMETRY,
                subject=Subject(proxy=node),
                before=f"{name} {'heard' if missing else 'lost'}",
                after=f"{name} {'lost' if missing else 'heard'}",
                reason=f"{node} is connected, and its {name} do not come: decisions do without"
                if missing
                else f"{name} of {node} come again, or it is gone",
                returns="with the next one that comes" if missing else "",
                alarm=missing,
            )
