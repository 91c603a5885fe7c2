"""What the orchestrator says of the engines, and what it said last of those that it no longer names.

A source says first that an engine ends, and in the end no longer names it; the policies without it come a moment
later, for they are read and judged as a whole. In between nothing would be said against an engine that is no more.
So an end that was told holds for a while after nobody tells it, for the engine at that address.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from xds_server.fleet import EngineId, Fleet, with_words
from xds_server.orchestrator import OrchestratorWord

HELD_S: Final = 30.0
"""Long enough for policies to be judged, and short enough for an end that was not meant."""

_NOTHING: Final[Mapping[EngineId, OrchestratorWord]] = MappingProxyType({})


class _Ended(NamedTuple):
    word: OrchestratorWord
    address: tuple[str, int]
    until_s: float


class Words:
    """All that is said, and ends that are no longer told."""

    def __init__(self) -> None:
        self._said = _NOTHING
        self._ended: dict[EngineId, _Ended] = {}
        self._any = False

    def say(self, words: Mapping[EngineId, OrchestratorWord], fleet: Fleet | None, now_s: float) -> None:
        """Note all words that stand from now on; of engines that are not in them nothing is said."""
        self._ended = {key: ended for key, ended in self._ended.items() if now_s < ended.until_s}
        for key, word in self._said.items():
            engine = None if fleet is None or key in words or not word.standing.final else fleet.engine(key)
            if engine is not None:
                self._ended[key] = _Ended(word, (engine.address, engine.port), now_s + HELD_S)
        self._said = words
        self._any = self._any or bool(words)

    def over(self, fleet: Fleet, now_s: float) -> Fleet:
        """The fleet with what is said of its engines."""
        if not self._any:
            return fleet  # the same without a look at each engine: most fleets have no orchestrator
        held = {}
        for key, ended in self._ended.items():
            engine = fleet.engine(key)
            if engine is not None and (engine.address, engine.port) == ended.address and now_s < ended.until_s:
                held[key] = ended.word
        return with_words(fleet, {**held, **self._said})
