"""Pod states of engines from the orchestrator, including the last state of engines it no longer lists.

A source first reports that an engine ends, then no longer lists it. The policies without it arrive a moment later,
because they are validated as a whole. In between, nothing would mark the engine as gone. So a reported end stays
in force for a while for the engine at that address, but not for one that the source knows to be another, such as a
pod that returned under the same name and address.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from xds_server.model.fleet import EngineId, Fleet, with_pod_states
from xds_server.model.pod_state import PodState

HELD_S: Final = 30.0
"""Long enough to validate policies, and short enough for an unintended end."""

_NOTHING: Final[Mapping[EngineId, PodState]] = MappingProxyType({})
_UNKNOWN: Final[Mapping[EngineId, str]] = MappingProxyType({})


class _Ended(NamedTuple):
    word: PodState
    address: tuple[str, int]
    uid: str
    until_s: float

    def another(self, uid: str) -> bool:
        """Whether this identity is known to be another engine than the one that ended."""
        return bool(uid and self.uid) and uid != self.uid


class OrchestratorStates:
    """Current pod states, and ends that are no longer reported."""

    def __init__(self) -> None:
        self._said = _NOTHING
        self._uids = _UNKNOWN
        self._ended: dict[EngineId, _Ended] = {}
        self._any = False
        self._upon: Mapping[str, Mapping[str, int]] | None = None
        self._until_s = math.inf

    def update(
        self,
        words: Mapping[EngineId, PodState],
        fleet: Fleet | None,
        now_s: float,
        uids: Mapping[EngineId, str] = _UNKNOWN,
    ) -> None:
        """Replace all pod states; engines without one have none.

        ``uids`` tell engines of the same name apart, as far as known.
        """
        ended = dict(self._ended)
        for key, word in self._said.items():
            engine = None if fleet is None or key in words or not word.standing.final else fleet.engine(key)
            if engine is not None:
                at = engine.address, engine.port
                ended[key] = _Ended(word, at, self._uids.get(key, ""), now_s + HELD_S)
        self._ended = {
            key: one for key, one in ended.items() if now_s < one.until_s and not one.another(uids.get(key, ""))
        }
        self._said, self._uids = words, uids
        self._any = self._any or bool(words)
        self._upon = None

    def apply(self, fleet: Fleet, now_s: float) -> Fleet:
        """The fleet with the pod states of its engines."""
        if not self._any:
            return fleet  # shortcut: most fleets have no orchestrator
        held = {}
        for key, ended in self._ended.items():
            engine = fleet.engine(key)
            if engine is not None and (engine.address, engine.port) == ended.address and now_s < ended.until_s:
                held[key] = ended.word
        return with_pod_states(fleet, {**held, **self._said})

    def apply_cached(self, fleet: Fleet, now_s: float) -> Fleet:
        """The same for the one fleet that is carried from round to round: only changes are applied.

        Other updates of that fleet leave its order and pod states as they are.
        """
        if self._upon is fleet.places and now_s < self._until_s:
            return fleet
        self._upon = fleet.places
        self._until_s = min((one.until_s for one in self._ended.values() if now_s < one.until_s), default=math.inf)
        return self.apply(fleet, now_s)
