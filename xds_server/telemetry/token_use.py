"""What requests really cost, from the engines' own counters and the access logs of the same engines.

Engines count tokens of prompts and answers, of all requests together. Access logs have what each request asked
for: the bytes of its body, and the most tokens of its answer. Between two readings of an engine's counters both
grow; their sums fade together, so that what is in progress at a reading averages out. Two ratios per pool follow,
the median of its engines: bytes of a body for a token of its prompt, and the part of the asked tokens that answers
use.

An engine counts only if the proxies reported about as many requests as it finished: else others use it, or its
counters stand still. Ratios that no model has are taken for wrong counters. So one engine can mislead the pool
only within these bounds, and not alone where there are three or more.
"""

import math
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from prometheus_client.core import Metric

from engine.report import TokenWork
from xds_server.metrics.fleet_metrics import PoolMetrics
from xds_server.model.fleet import EngineId

_MEMORY_S: Final = 600.0
"""Time constant of the sums (1/e): callers change within minutes, and few calls must collect enough."""

_ENOUGH_REQUESTS: Final = 20.0
_MOST_FINISHED: Final = 1.25
"""Requests that an engine finished for one that proxies reported. More: others use it."""

_LEAST_FINISHED: Final = 0.5
"""The same, below which its counters stand still. vLLM does not count requests whose caller left."""

_LEAST_BYTES, _MOST_BYTES = 0.5, 64.0
"""Bytes for a token. Pictures in a body are many bytes for few tokens; nothing else is outside."""

_MOST_SHARE: Final = 16.0
"""Used over asked tokens of answers: above 1 where requests state no limit, and answers are long."""

_UNTIL_FRESH_S: Final = 3600.0
"""Without readings for this long, ratios are dropped."""


def sent_bytes(entry: Any) -> float:
    """Size of a request's body, from the entry of a try: it is about the engine, to which Envoy sent the body."""
    sent: float = entry.response.response_body_bytes
    return sent


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTokens:
    """What one request asked for: bytes of its body, tokens estimated from them, and the most of its answer."""

    body_bytes: float
    prompt: float
    answer: float

    @property
    def estimate(self) -> float:
        """Tokens of prompt and answer, as quotas count them."""
        return self.prompt + self.answer


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRatios:
    """What requests of a pool really cost: bytes for a token of a prompt, and used over asked tokens of answers.

    ``answer_tokens`` is the mean of an answer. ``engines`` agree on it, from ``requests``.
    """

    bytes_per_token: float
    answer_share: float
    answer_tokens: float
    engines: int
    requests: float

    def corrected(self, asked: RequestedTokens) -> float:
        """Tokens that a request like this really costs, on average."""
        return asked.body_bytes / self.bytes_per_token + asked.answer * self.answer_share


class _EngineUse:
    """Sums of one engine: what was asked of it, what it did, and what was asked since its last reading."""

    __slots__ = ("asked", "at_s", "boot", "done", "fresh", "newest")

    def __init__(self) -> None:
        self.boot = ""
        self.newest: TokenWork | None = None
        self.at_s = 0.0
        self.fresh = [0.0, 0.0, 0.0]
        self.asked = [0.0, 0.0, 0.0]  # requests, bytes, tokens of answers
        self.done = [0.0, 0.0, 0.0]  # finished, prompt tokens, generated tokens

    def read(self, boot: str, work: TokenWork, at_s: float) -> None:
        """Take the engine's newest counters; the first of a boot only begins."""
        grown = work.since(self.newest) if self.newest is not None and boot == self.boot else None
        fresh, self.fresh = self.fresh, [0.0, 0.0, 0.0]
        kept = math.exp(-max(0.0, at_s - self.at_s) / _MEMORY_S)
        self.boot, self.newest, self.at_s = boot, work, at_s
        if grown is None:
            return
        if not fresh[0] and grown.generation_tokens <= grown.finished:
            return  # nothing, or canaries: they ask for one token each
        self.asked = [kept * before + more for before, more in zip(self.asked, fresh, strict=True)]
        did = (grown.finished, grown.prompt_tokens, grown.generation_tokens)
        self.done = [kept * before + more for before, more in zip(self.done, did, strict=True)]

    def ratios(self, now_s: float) -> tuple[float, float, float] | None:
        """Bytes for a token, used over asked tokens, tokens of an answer; None if these are not known."""
        requests, body_bytes, answers = self.asked
        finished, prompts, used = self.done
        if requests < _ENOUGH_REQUESTS or now_s - self.at_s > _UNTIL_FRESH_S:
            return None
        if not _LEAST_FINISHED * requests <= finished <= _MOST_FINISHED * requests:
            return None
        if not prompts or not answers or not used:
            return None
        bytes_per_token, share = body_bytes / prompts, used / answers
        if not _LEAST_BYTES <= bytes_per_token <= _MOST_BYTES or share > _MOST_SHARE:
            return None
        return bytes_per_token, share, used / finished


class TokenUse:
    """What requests of each pool cost. Bounded by the engines of the policies."""

    def __init__(self) -> None:
        self._engines: dict[EngineId, _EngineUse] = {}
        self._pools: dict[str, TokenRatios] = {}

    def record_request(self, engine: EngineId, asked: RequestedTokens, weight: float) -> None:
        """Count a request that the engine answered, once its counters are known."""
        use = self._engines.get(engine)
        if use is not None:
            use.fresh[0] += weight
            use.fresh[1] += weight * asked.body_bytes
            use.fresh[2] += weight * asked.answer

    def read(self, engine: EngineId, boot_id: str, work: TokenWork, at_s: float) -> None:
        """Take an engine's counters."""
        self._engines.setdefault(engine, _EngineUse()).read(boot_id, work, at_s)
        pool = engine.pool
        found = [
            (ratios, one.asked[0])
            for key, one in self._engines.items()
            if key.pool == pool and (ratios := one.ratios(at_s)) is not None
        ]
        if not found:
            self._pools.pop(pool, None)
            return
        self._pools[pool] = TokenRatios(
            bytes_per_token=median(ratios[0] for ratios, _ in found),
            answer_share=median(ratios[1] for ratios, _ in found),
            answer_tokens=median(ratios[2] for ratios, _ in found),
            engines=len(found),
            requests=sum(requests for _, requests in found),
        )

    def corrected(self, pool: str, asked: RequestedTokens) -> float:
        """Tokens that a request really costs; the estimate while nothing is known."""
        ratios = self._pools.get(pool)
        return asked.estimate if ratios is None else ratios.corrected(asked)

    def pools(self) -> Mapping[str, TokenRatios]:
        """What is known, by pool."""
        return self._pools

    def keep(self, engines: Mapping[str, Set[str]]) -> None:
        """Forget all but these engines, by pool."""
        for one in [one for one in self._engines if one.engine not in engines.get(one.pool, ())]:
            del self._engines[one]
        for pool in [pool for pool in self._pools if pool not in engines]:
            del self._pools[pool]

    def families(self) -> Iterator[Metric]:
        """The ratios, for a scrape."""
        pools = self._pools.items()
        yield PoolMetrics.pool_bytes_per_token.family({(pool,): one.bytes_per_token for pool, one in pools})
        yield PoolMetrics.pool_answer_used_ratio.family({(pool,): one.answer_share for pool, one in pools})
