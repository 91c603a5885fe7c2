"""Conversations on engines with a prefix cache: affinity by prompt, least request and random, in four situations.

Fake engines with vLLM's block rule stand behind a real Envoy and control plane at their defaults. Users hold
conversations of several turns; each turn sends the whole conversation so far. Engines compute prompts in steps
that all their calls share, and their caches hold a part of all conversations only.

``calm``: every conversation has a begin of its own. ``hot``: half of them have the same. ``hung``: calm, and one
engine hangs at the begin. ``crashed``: calm, and half of the engines crash at the begin. A turn is good if it gets
its answer and its first token within a limit.
"""

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from benchmarks.harness import ResultColumn, option_parser, percentile, publish, result_table
from benchmarks.testbed import LIMIT_S, POOL, Testbed, until
from chaos.fake_engine import EngineConfig, EngineCrash, EngineFault, EngineHang
from chaos.processes import ChildProcesses

ENGINES: Final = 4
ENGINE: Final = EngineConfig(
    first_token_gate=True,
    enable_prefix_caching=True,
    slots=16,
    prefill_s=0.0,
    token_s=0.01,
    step_prefill_token_s=0.0002,
    kv_cache_tokens=24_000,
    max_model_len=8192,
)
USERS: Final = 32
TURNS: Final = 6
THINK_S: Final = 1.0
ANSWER_TOKENS: Final = 8
SYSTEM_CHARACTERS: Final = 2_000
TURN_CHARACTERS: Final = 1_200
GOOD_FIRST_TOKEN_S: Final = 0.5
"""A turn whose own text is new, and no more, takes a fifth of it."""

CONTESTANTS: Final[Mapping[str, Mapping[str, Any] | None]] = {
    "affinity": {"prefix": {}},
    "least request": None,
    # Envoy gives requests without the key a random engine, and the bound is out of reach.
    "random": {"header": "x-not-sent", "slackPercent": 1000},
}
FAULTS: Final[Mapping[str, tuple[EngineFault, int]]] = {
    "hung": (EngineHang(), 1),
    "crashed": (EngineCrash(), ENGINES // 2),
}
"""Situations in which engines break at the begin: the fault, and of how many."""
SITUATIONS: Final = ("calm", "hot", *FAULTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class AffinityRow:
    """One contestant in one situation; ``largest_share`` is of an engine's turns over the mean of all engines."""

    situation: str
    contestant: str
    turns: int
    hit_percent: float
    first_token_p50_ms: float
    first_token_p99_ms: float
    good_per_s: float
    good_percent: float
    largest_share: float


@dataclass(slots=True)
class _Seen:
    """Turns that ended; seconds to the first token, or None for a failed one."""

    first_token_s: list[float | None] = field(default_factory=list)


class AffinitySite(Testbed):
    """A site whose route has this affinity."""

    def __init__(self, folder: Path, processes: ChildProcesses, affinity: Mapping[str, Any] | None) -> None:
        super().__init__(folder, processes, engines=ENGINES, engine=ENGINE)
        self._affinity = affinity

    def policy_specs(self) -> Mapping[str, Mapping[str, Any]]:
        """The default site's, with the affinity."""
        specs = {kind: dict(spec) for kind, spec in super().policy_specs().items()}
        specs["EnginePool"] |= {"firstTokenGate": True, "slotsPerEngine": ENGINE.slots, "serviceTime": "300ms"}
        if self._affinity is not None:
            specs["ModelRoute"]["affinity"] = self._affinity
        return specs

    @property
    def url(self) -> str:
        """Where callers send chats."""
        return f"http://127.0.0.1:{self._listener}/v1/chat/completions"

    def counters(self) -> tuple[float, float, list[float]]:
        """Queried and found tokens of all prompts, and the calls of each engine, since the start."""
        pages = [engine.metrics_text().decode() for engine in self.engines]
        return (
            sum(_value(page, "vllm:prefix_cache_queries_total") for page in pages),
            sum(_value(page, "vllm:prefix_cache_hits_total") for page in pages),
            [float(engine.book.totals().arrived) for engine in self.engines],
        )


def _value(page: str, name: str) -> float:
    return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(f"{name}{{"))


def _text(drawn: random.Random, characters: int) -> str:
    return "".join(drawn.choices("abcdefghijklmnopqrstuvwxyz ", k=characters))


async def _user(site: AffinitySite, number: int, seen: _Seen, until_s: float, *, hot: bool) -> None:
    """One user after another conversation, until the time is over."""
    drawn = random.Random(number)
    shared = random.Random(0)
    systems = [_text(shared, SYSTEM_CHARACTERS) for _ in range(3)]
    same = _text(shared, TURN_CHARACTERS)
    await asyncio.sleep(drawn.uniform(0, THINK_S))
    while time.monotonic() < until_s:
        begin = same if hot and number % 2 else _text(drawn, TURN_CHARACTERS)
        messages = [
            {"role": "system", "content": systems[0] if hot and number % 2 else drawn.choice(systems)},
            {"role": "user", "content": begin},
        ]
        for _ in range(TURNS):
            if time.monotonic() >= until_s:
                return
            answer, first_s = await _turn(site, messages)
            seen.first_token_s.append(first_s)
            messages += [
                {"role": "assistant", "content": answer},
                {"role": "user", "content": _text(drawn, TURN_CHARACTERS)},
            ]
            await asyncio.sleep(drawn.expovariate(1 / THINK_S))


async def _turn(site: AffinitySite, messages: Sequence[Mapping[str, str]]) -> tuple[str, float | None]:
    """The answer, and seconds to its first token; None if it does not end well."""
    body = {
        "model": ENGINE.model, "messages": messages, "stream": True, "max_tokens": ANSWER_TOKENS,
    }  # fmt: skip
    began_s = time.monotonic()
    first_s: float | None = None
    text, done = "", False
    try:
        async with site.http.post(site.url, json=body) as answer:
            async for line in answer.content:
                if not line.startswith(b"data: "):
                    continue
                if line.startswith(b"data: [DONE]"):
                    done = True
                    continue
                said = json.loads(line[6:]).get("choices", [{}])
                piece = said[0].get("delta", {}).get("content") if said else None
                if piece:
                    first_s = first_s or time.monotonic() - began_s
                    text += piece
    except (aiohttp.ClientError, TimeoutError):
        return text, None
    return text, first_s if done else None


async def _situation(site: AffinitySite, name: str, contestant: str, seconds: float) -> AffinityRow:
    """Users for this long; the first third warms caches and is not counted, but with broken engines."""
    warm_s = seconds / 3
    seen = _Seen()
    hot = name == "hot"
    end_s = time.monotonic() + warm_s + seconds
    if name in FAULTS:
        fault, count = FAULTS[name]
        for engine in site.engines[:count]:
            await engine.set_fault(fault)
        warm_s = 0.0
    users = [asyncio.create_task(_user(site, one, seen, end_s, hot=hot)) for one in range(USERS)]
    await asyncio.sleep(warm_s)
    seen.first_token_s.clear()
    queries, hits, calls = site.counters()
    began_s = time.monotonic()
    await asyncio.gather(*users)
    took_s = time.monotonic() - began_s
    now_queries, now_hits, now_calls = site.counters()
    answered = [one for one in seen.first_token_s if one is not None]
    good = sum(one <= GOOD_FIRST_TOKEN_S for one in answered)
    served = [after - before for before, after in zip(calls, now_calls, strict=True)]
    await _healed(site)
    return AffinityRow(
        situation=name,
        contestant=contestant,
        turns=len(seen.first_token_s),
        hit_percent=100 * (now_hits - hits) / max(1.0, now_queries - queries),
        first_token_p50_ms=1e3 * percentile(answered, 50),
        first_token_p99_ms=1e3 * percentile(answered, 99),
        good_per_s=good / took_s,
        good_percent=100 * good / max(1, len(seen.first_token_s)),
        largest_share=max(served) * len(served) / max(1.0, sum(served)),
    )


async def _healed(site: AffinitySite) -> None:
    """Return when all engines are healthy, and known to be."""
    for engine in site.engines:
        await engine.heal()

    async def healthy() -> bool:
        return {await site.health(engine) for engine in site.engines} == {"HEALTHY"}

    await until(healthy, f"all engines healthy within {LIMIT_S:g} s")


async def _contestant(name: str, seconds: float) -> list[AffinityRow]:
    with tempfile.TemporaryDirectory() as scratch:
        async with (
            ChildProcesses() as processes,
            AffinitySite(Path(scratch), processes, CONTESTANTS[name]) as site,
        ):

            async def serves() -> bool:
                _, first_s = await _turn(site, [{"role": "user", "content": "hello"}])
                return first_s is not None

            await until(serves, f"{POOL} serves within {LIMIT_S:g} s")
            return [await _situation(site, one, name, seconds) for one in SITUATIONS]


COLUMNS: Final[Sequence[ResultColumn[AffinityRow]]] = (
    ResultColumn(heading="situation", cell=lambda row: row.situation, left=True),
    ResultColumn(heading="balancing", cell=lambda row: row.contestant, left=True),
    ResultColumn(heading="turns", cell=lambda row: str(row.turns)),
    ResultColumn(heading="hits", cell=lambda row: f"{row.hit_percent:.0f} %"),
    ResultColumn(heading="first token p50", cell=lambda row: f"{row.first_token_p50_ms:.0f} ms"),
    ResultColumn(heading="p99", cell=lambda row: f"{row.first_token_p99_ms:.0f} ms"),
    ResultColumn(heading="good", cell=lambda row: f"{row.good_per_s:.1f}/s"),
    ResultColumn(heading="of all", cell=lambda row: f"{row.good_percent:.0f} %"),
    ResultColumn(heading="largest share", cell=lambda row: f"{row.largest_share:.2f}"),
)


def main(argv: Sequence[str]) -> int:
    """Measure, print, write; 0, as there is no target."""
    parser = option_parser("affinity", __doc__)
    parser.add_argument("--seconds", type=_positive, default=6.0, help="of each situation (%(default)s)")
    options = parser.parse_args(argv)
    rows = [row for name in CONTESTANTS for row in asyncio.run(_contestant(name, options.seconds))]
    rows.sort(key=lambda row: SITUATIONS.index(row.situation))
    caption = f"{ENGINES} engines, {USERS} users, conversations of {TURNS} turns, {os.cpu_count()} cores"
    table = result_table("conversations on engines with a prefix cache", COLUMNS, rows, caption=caption)
    return publish([table], options.json, {"rows": [asdict(row) for row in rows]})


def _positive(text: str) -> float:
    value = float(text)
    if value <= 0:
        msg = "must be above 0"
        raise argparse.ArgumentTypeError(msg)
    return value
