"""How many proxies there are, remembered long enough that a reconnect is not a departure.

Ceilings and retry budgets are divided by the proxies of a role. Taken literally, a restart of the control
plane would hand the first proxy that returns the whole ceiling and then take it back piece by piece. So a
count rises at once and falls only after ``HOLD_S``: for that long a limit may be too low by the share of the
proxies that left, and it is never too high because of those that are on their way back. Zones are counted the
same way: who asks from where decides how zones share, and a gateway that restarts must not move that about.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

HOLD_S: Final = 30.0
"""Above Envoy's longest reconnect back-off with the bootstrap Switchgear prints (1 s), with room for a rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """Proxies by role, or by zone: ``connected`` now, ``remembered`` with when (monotonic) a higher count ends."""

    connected: Mapping[str, int]
    remembered: Mapping[str, tuple[int, float]]

    def counts(self) -> Mapping[str, int]:
        """The proxies to reckon with, per role or zone; every count is at least one."""
        roles = sorted({*self.connected, *self.remembered})
        counts = {role: max(self.connected.get(role, 0), self.remembered.get(role, (0, 0.0))[0]) for role in roles}
        return MappingProxyType({role: count for role, count in counts.items() if count})


EMPTY: Final = Roster(connected=MappingProxyType({}), remembered=MappingProxyType({}))


def restored(counts: Mapping[str, int], now_s: float) -> Roster:
    """The roster of a server that has just started and knows whom the last one served."""
    remembered = {role: (count, now_s + HOLD_S) for role, count in counts.items()}
    return Roster(connected=MappingProxyType({}), remembered=MappingProxyType(remembered))


def updated(roster: Roster, connected: Mapping[str, int], now_s: float) -> Roster:
    """The roster with these proxies connected; a count that fell is remembered for ``HOLD_S``."""
    remembered = {role: held for role, held in roster.remembered.items() if held[1] > now_s}
    for role, before in roster.connected.items():
        count = max(before, remembered.get(role, (0, 0.0))[0])
        if connected.get(role, 0) < before:
            remembered[role] = (count, now_s + HOLD_S)
    kept = {role: held for role, held in remembered.items() if held[0] > connected.get(role, 0)}
    return Roster(connected=MappingProxyType(dict(connected)), remembered=MappingProxyType(kept))
