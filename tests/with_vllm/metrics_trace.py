"""Plays the same requests into an engine, real or simulated, and records every change of its /metrics."""

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

CONTEXT_TOKENS: Final = 8192
CHUNK_TOKENS: Final = 1024
SLOTS: Final = 8
BLOCK_SIZE: Final = 128
BLOCKS: Final = 80
"""Blocks of the KV cache, without the one that vLLM keeps for itself."""

LONG, SHORT = 6000, 30
SHORTS: Final = 2
TOKENS: Final = 4
CROWD, CROWD_PROMPT, CROWD_TOKENS = 9, 1200, 170

FOLLOWED: Final = (
    "num_requests_running",
    "num_requests_waiting",
    'num_requests_waiting_by_reason{reason="capacity"}',
    "kv_cache_usage_perc",
    "prompt_tokens_total",
    'prompt_tokens_by_source_total{source="local_compute"}',
    "generation_tokens_total",
    "prefix_cache_queries_total",
    "iteration_tokens_total_count",
    "iteration_tokens_total_sum",
    "time_to_first_token_seconds_count",
    "e2e_request_latency_seconds_count",
    "num_preemptions_total",
    'request_success_total{finished_reason="length"}',
)
"""Metrics of the trace, without ``vllm:`` and the labels of the model and the engine."""
_GAUGES: Final = ("num_requests_", "kv_cache_")
_SAMPLE: Final = re.compile(r"^vllm:(\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)
_PAUSE_S: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The metrics that changed together, and their new values, from ``at_s`` of the trace on."""

    at_s: float
    values: Mapping[str, float]


def followed(page: str) -> dict[str, float]:
    """The followed metrics of a page; every line must carry engine 0."""
    found = {}
    for name, labels, value in _SAMPLE.findall(page):
        kept = [one for one in labels.split(",") if one and not one.startswith(("model_name=", "engine="))]
        key = f"{name}{{{','.join(kept)}}}" if kept else name
        if key in FOLLOWED:
            assert 'engine="0"' in labels, f"{name} has no engine label"
            found[key] = float(value)
    missing = set(FOLLOWED) - set(found)
    assert not missing, f"not in /metrics: {missing}"
    return found


class Trace:
    """Records one scenario: ``changes``, relative to the values at its start."""

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str) -> None:
        self.changes: list[Change] = []
        self._session = session
        self._url = url
        self._model = model
        self._now: dict[str, float] = {}
        self._start: dict[str, float] = {}
        self._began_s = 0.0

    async def record(self, scenario: Callable[["Trace"], Awaitable[None]]) -> None:
        """Play ``scenario`` into the idle engine; ends when the engine is idle again."""
        self._start = self._now = await self._page()
        self._began_s = time.monotonic()
        playing = asyncio.ensure_future(scenario(self))
        while not playing.done() or self._now["num_requests_running"] or self._now["kv_cache_usage_perc"]:
            await self._look()
            await asyncio.sleep(_PAUSE_S)
        await playing

    async def ask(self, prompt: int, tokens: int, *, seed: int) -> None:
        """One request with a prompt of random token ids; the prefix cache has none of them."""
        rng = random.Random(seed)
        ids = [rng.randrange(1, 256) for _ in range(prompt)]
        body = {"model": self._model, "prompt": ids, "max_tokens": tokens}
        async with self._session.post(f"{self._url}/v1/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()
            await answer.read()

    async def until(self, metric: str, value: float) -> None:
        """Wait until a metric has grown by ``value`` since the start."""
        while self._now[metric] - self._start[metric] < value:
            await asyncio.sleep(_PAUSE_S)

    def total(self, metric: str) -> float:
        """Growth of a metric over the trace."""
        return self._now[metric] - self._start[metric]

    def sequence(self, metric: str) -> list[float]:
        """Values of a metric in the trace, without repetitions."""
        return [change.values[metric] for change in self.changes if metric in change.values]

    def as_object(self) -> list[Any]:
        """For JSON: a list of times and changed values."""
        return [
            [round(one.at_s, 3), {name: round(value, 6) for name, value in one.values.items()}]
            for one in self.changes
        ]

    async def _look(self) -> None:
        seen = await self._page()
        # Counters never go back.
        for name, value in seen.items():
            assert name.startswith(_GAUGES) or value >= self._now[name], name
        changed = {
            name: value - (0.0 if name.startswith(_GAUGES) else self._start[name])
            for name, value in seen.items()
            if value != self._now[name]
        }
        self._now = seen
        if changed:
            self.changes.append(Change(at_s=time.monotonic() - self._began_s, values=changed))

    async def _page(self) -> dict[str, float]:
        async with self._session.get(f"{self._url}/metrics") as answer:
            return followed(await answer.text())


async def long_prompt(trace: Trace) -> None:
    """One long prompt alone."""
    await trace.ask(LONG, TOKENS, seed=1)


async def short_behind_long(trace: Trace) -> None:
    """Short requests that arrive in the second chunk of a long prompt."""
    long = asyncio.create_task(trace.ask(LONG, TOKENS, seed=2))
    await trace.until("kv_cache_usage_perc", 0.01)
    await asyncio.gather(*(trace.ask(SHORT, TOKENS, seed=3 + number) for number in range(SHORTS)))
    await long


async def crowd(trace: Trace) -> None:
    """More requests than slots, and more tokens than the KV cache holds."""
    await asyncio.gather(*(trace.ask(CROWD_PROMPT, CROWD_TOKENS, seed=10 + number) for number in range(CROWD)))


SCENARIOS: Final = (long_prompt, short_behind_long, crowd)


def while_prefilling(trace: Trace) -> list[Mapping[str, float]]:
    """Changes up to the first token, without times."""
    shown = []
    for change in trace.changes:
        shown.append({name: round(value, 4) for name, value in change.values.items()})
        if "generation_tokens_total" in change.values:
            break
    return shown[:-1]


def finals(trace: Trace) -> Mapping[str, float]:
    """Growth of every counter, except that of preemptions."""
    return {
        name: trace.total(name)
        for name in FOLLOWED
        if not name.startswith(_GAUGES) and name != "num_preemptions_total"
    }
