"""How an endpoint picker chooses: by engine metrics, or by its own requests in flight. Pure.

Like the reference picker of the Gateway API's inference extension, without prefixes and adapters: a queue score,
scaled between the longest and the shortest queue, and a KV cache score, of equal weight. The best wins, ties are
random. Engines whose ``/health`` fails are skipped.
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
    """An engine's last metrics: waiting requests, and KV cache use, 0 to 1."""

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
