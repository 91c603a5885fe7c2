"""What the control plane decided, from the lines of ``switchgear serve --ledger``. Pure.

Of an engine that goes to and fro within a minute the number ``times`` says how often it has.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Final

from chaos.history.events import Decided
from xds_server.decide.changes.change import ChangeKind
from xds_server.decide.decisions import Health
from xds_server.ledger.event import Event, Now, from_line

_UNKNOWN: Final = Now(s=0.0, unix_s=0.0)


def decisions(lines: Iterable[str], began_unix_s: float) -> Iterator[Decided]:
    """The events of these lines, without those that are none; ``began_unix_s`` is the wall clock at ``at_s`` 0."""
    for line in lines:
        event = from_line(line, _UNKNOWN)
        if event is not None:
            yield decided(event, began_unix_s)


def decided(event: Event, began_unix_s: float) -> Decided:
    """A line of the ledger as an event of a history."""
    numbers = {name: value for name, value in event.numbers.items() if math.isfinite(value)}
    if event.times > 1:
        numbers["times"] = float(event.times)
    return Decided(
        at_s=event.at_unix_s - began_unix_s,
        kind=event.kind.value,
        engine=event.subject.engine,
        subject=str(event.subject),
        before=event.before,
        after=event.after,
        evidence=event.evidence,
        rule=event.rule,
        # A health that is not HEALTHY, whichever it is, means nothing new: Envoy's panic mode is off.
        out=event.after != Health.HEALTHY.value if event.kind is ChangeKind.HEALTH else None,
        numbers=numbers,
    )
