"""Envoy's Maglev table with bounded load: the engine of a key, and the one that takes its place. Pure.

Source: envoy, source/extensions/load_balancing_policies/maglev/maglev_lb.cc, and BoundedLoadHashingLoadBalancer in
common/thread_aware_lb_impl.cc.
"""

import hashlib
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_SIZE: Final = 4093
"""Entries of the table, a prime. Envoy has 65 537; this is a hundred for each of forty engines."""

_NO_HASH: Final = (1 << 64) - 1


def key_hash(text: str) -> int:
    """64 bits of a key."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


@dataclass(frozen=True, slots=True)
class HashTable:
    """Engines with their parts of all requests, and the engine of each entry."""

    shares: Mapping[str, float]
    entries: tuple[str, ...]

    def choose(self, key: int, attempt: int, active: Mapping[str, int], bound_percent: int) -> str:
        """Engine of a key; another one if its requests in flight are above the bound.

        Each further ``attempt`` of a retry looks at another entry.
        """
        place = key ^ (_NO_HASH - attempt + 1) if attempt else key
        engine = self.entries[place % len(self.entries)]
        slots = ((sum(active.values()) + 1) * bound_percent + 99) // 100
        least = load = self._load(engine, active, slots)
        if load <= 1.0:
            return engine
        others = [one for one in self.shares if one != engine]
        # Envoy, too, shuffles by the key: a key above the bound always goes to the same others.
        random.Random(place).shuffle(others)  # noqa: S311 -- a permutation, no secret
        for other in others:
            load = self._load(other, active, slots)
            if load <= 1.0:
                return other
            if load < least:
                least, engine = load, other
        return engine

    def _load(self, engine: str, active: Mapping[str, int], slots: int) -> float:
        return active.get(engine, 0) / max(1, math.ceil(slots * self.shares[engine]))


@lru_cache(maxsize=512)
def hash_table(weights: tuple[tuple[str, float], ...]) -> HashTable:
    """The table of engines with these weights."""
    total = sum(weight for _, weight in weights)
    shares = {engine: weight / total for engine, weight in weights}
    most = max(shares.values())
    steps = {engine: _permutation(engine) for engine in shares}
    nexts, targets = dict.fromkeys(shares, 0), dict.fromkeys(shares, 0.0)
    entries: list[str] = [""] * _SIZE
    left, turn = _SIZE, 0
    while left:
        turn += 1
        for engine, share in shares.items():
            # An engine with half of the largest weight takes an entry in every second turn.
            if not left or turn * share < targets[engine]:
                continue
            targets[engine] += most
            offset, skip = steps[engine]
            place = (offset + skip * nexts[engine]) % _SIZE
            while entries[place]:
                nexts[engine] += 1
                place = (offset + skip * nexts[engine]) % _SIZE
            entries[place] = engine
            nexts[engine] += 1
            left -= 1
    return HashTable(shares, tuple(entries))


def _permutation(engine: str) -> tuple[int, int]:
    return key_hash(engine) % _SIZE, key_hash(f"{engine} skip") % (_SIZE - 1) + 1
