"""How an endpoint picker chooses: by what engines say of themselves, or by what it sent itself. Pure.

As the reference picker of the Gateway API's inference extension does it without prefixes and adapters, of which
the bench has none: a score from the queue, stretched between the longest and the shortest there is, and one from
the KV cache, of equal weight; the best wins, and chance among equals. Engines whose ``/health`` fails are out.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

By = Literal["metrics", "in_flight"]

_GAUGE: Final = re.compile(rb"^vllm:(num_requests_waiting|kv_cache_usage_perc)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineGauges:
    """What an engine last said: requests that wait, and the KV cache in use, 0 to 1."""

    waiting: float = 0.0
    kv_ratio: float = 0.0


def engine_gauges(text: bytes) -> EngineGauges:
    """The part of a page of vLLM's metrics that a picker reads."""
    found = {name: float(value) for name, value in _GAUGE.findall(text)}
    return EngineGauges(waiting=found[b"num_requests_waiting"], kv_ratio=found[b"kv_cache_usage_perc"])


def best_scored(engines: Mapping[str, EngineGauges], rng: random.Random) -> str | None:
    """The engine for the next request by what they say; None where there is none."""
    if not engines:
        return None
    shortest = min(one.waiting for one in engines.values())
    longest = max(one.waiting for one in engines.values())
    spread = (longest - shortest) or 1.0
    scores = {name: (longest - one.waiting) / spread - one.kv_ratio for name, one in engines.items()}
    return _best(scores, rng)


def least_busy(in_flight: Mapping[str, int], rng: random.Random) -> str | None:
    """The engine with the fewest requests in flight, by the picker's own count; None where there is none."""
    return _best({name: -float(count) for name, count in in_flight.items()}, rng) if in_flight else None


def _best(scores: Mapping[str, float], rng: random.Random) -> str:
    best = max(scores.values())
    return rng.choice([name for name, score in scores.items() if score == best])
