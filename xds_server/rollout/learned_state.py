"""State learned from traffic and in force at proxies, on disk: it survives a restart.

Time limits, hedge delays and engine speeds come from calls that a restarted server has not seen, slow starts from
returns that it has not seen. Without them, proxies would lose limits because the control plane came back. So they
are saved and become the decisions before the first round; new measurements then move them as usual
(docs/adr/0021-what-was-learned-outlives-a-restart.md).

The file is separate and versioned, because an earlier version also reads ``last-good.json``; a server that cannot
read this file starts without it.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from xds_server.decide.decision_memory import (
    NO_MEMORY,
    NO_SLOW_START,
    CapacityEstimate,
    CapacityMemory,
    DecisionMemory,
    HedgeMemory,
    LongestCall,
    PoolMemory,
    RampMemory,
    RetryMemory,
    SlowStartMemory,
    TimeLimitMemory,
)
from xds_server.decide.decisions import (
    UNDECIDED,
    EngineCapacity,
    HedgeCause,
    HedgeDecision,
    RetryDecision,
    TimeLimits,
)
from xds_server.model.fleet import EngineId
from xds_server.state.atomic_file import remove_leftovers
from xds_server.state.versioned_file import StoreError, VersionedFile

FORMAT: Final = "switchgear-learned/1"
FILE_NAME: Final = "learned.json"
MAX_BYTES: Final = 64 * 1024 * 1024

MAX_AGE_S: Final = 24 * 3600.0
"""Older state is ignored: most proxies were probably replaced meanwhile."""

HELD_S: Final = 120.0
"""How long it holds without telemetry: proxies are back within seconds and report every second."""

_REASON: Final = "restored from the last run until measured again"

_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Longest(_Model):
    time_s: _Seconds
    age_s: _Seconds


class _Limits(_Model):
    first_token_s: _Seconds | None
    per_try_s: _Seconds | None
    answer: _Longest | None
    first_byte: _Longest | None
    widened: Annotated[float, Field(ge=1, le=1000)]
    doubted_ago_s: _Seconds | None


class _Hedge(_Model):
    on: bool
    delay_s: _Seconds | None
    answer_delay_s: _Seconds | None


class _Engine(_Model):
    slots: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    service_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    source: str
    done: _Seconds = 0.0
    busy: _Seconds = 0.0
    span_s: _Seconds = 0.0
    narrowed: _Seconds | None = None
    heard_ago_s: _Seconds | None = None


class _Ramp(_Model):
    ramped_s: _Seconds
    ago_s: _Seconds
    held_s: _Seconds = 0.0


class _SlowStart(_Model):
    ramps: dict[str, _Ramp] = {}
    absent: tuple[str, ...] = ()


class _Pool(_Model):
    limits: _Limits | None = None
    hedge: _Hedge | None = None
    not_retried: tuple[int, ...] | None = None
    engines: dict[str, _Engine] = {}
    slow_start: _SlowStart | None = None


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    saved_at_unix_s: Annotated[float, Field(allow_inf_nan=False)]
    pools: dict[str, Any]


_FILE: Final = VersionedFile(format=FORMAT, content=_Kept, max_bytes=MAX_BYTES, one_line=True)


def learned_state(memory: DecisionMemory, now_s: float) -> Mapping[str, Any]:
    """State to save, by pool; ``now_s`` is monotonic, for ages only.

    A pool with a number that no server would read back is left out.
    """
    found: dict[str, Any] = {}
    for name, pool in memory.pools.items():
        # Such a number is a bug: it costs that pool its learned state, and must not cost the server.
        with contextlib.suppress(ValidationError):
            if (one := _pool(pool, now_s)) != _NOTHING:
                found[name] = one.model_dump(mode="json")
    return found


def comparable_numbers(pools: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same without values that change all the time: differences between two of these are worth saving."""
    return {
        name: (
            _without(pool["limits"], "answer", "first_byte", "doubted_ago_s"),
            pool["hedge"],
            pool["not_retried"],
            {engine: (one["slots"], one["service_s"]) for engine, one in pool["engines"].items()},
            pool["slow_start"] and (sorted(pool["slow_start"]["ramps"]), pool["slow_start"]["absent"]),
        )
        for name, pool in pools.items()
    }


def save(folder: Path, pools: Mapping[str, Any], unix_s: float) -> None:
    """Replace the saved state in one step; raises ``StoreError``."""
    _FILE.write(folder / FILE_NAME, {"saved_at_unix_s": unix_s, "pools": pools})


def read(folder: Path, unix_s: float, now_s: float) -> DecisionMemory:
    """The saved state as memory at ``now_s`` (monotonic); ``NO_MEMORY`` if none is recent enough.

    ``StoreError`` if it cannot be used.
    """
    path = folder / FILE_NAME
    remove_leftovers(path)
    found = _FILE.read(path)
    if found is None:
        return NO_MEMORY
    try:
        pools = {name: _Pool.model_validate(pool) for name, pool in found.pools.items()}
    except ValidationError as error:
        raise StoreError(f"{path} was not written by Switchgear, or is damaged") from error
    # If the wall clock was set back, it seems younger, but never from the future.
    age_s = max(0.0, unix_s - found.saved_at_unix_s)
    if age_s > MAX_AGE_S:
        return NO_MEMORY
    taken = {name: _taken_up(name, pool, age_s, now_s) for name, pool in pools.items()}
    return DecisionMemory(pools=MappingProxyType(taken))


# -- saving ------------------------------------------------------------------------------------------------------


def _pool(pool: PoolMemory, now_s: float) -> _Pool:
    limits = pool.limits
    hedge = None if pool.hedge is None else pool.hedge.decided.shadow or pool.hedge.decided
    retries = None if pool.retries is None else pool.retries.decided.shadow or pool.retries.decided
    able, estimates = pool.capacity.capacities, pool.capacity.estimates
    return _Pool(
        limits=_limits(limits, now_s) if limits is not None and (limits.answer or limits.first_byte) else None,
        hedge=_hedge(hedge) if hedge is not None and hedge.cause is not HedgeCause.POLICY else None,
        not_retried=retries.statuses if retries is not None and retries.sign_at_s is not None else None,
        engines={key.engine: _engine(able[key], estimate, now_s) for key, estimate in estimates.items()},
        slow_start=_slow_start(pool.slow_start, now_s) if pool.slow_start != NO_SLOW_START else None,
    )


_NOTHING: Final = _Pool()


def _limits(memory: TimeLimitMemory, now_s: float) -> _Limits:
    limits = memory.decided.shadow or memory.decided
    return _Limits(
        first_token_s=limits.first_token_s,
        per_try_s=limits.per_try_s,
        answer=_longest(memory.answer, now_s),
        first_byte=_longest(memory.first_byte, now_s),
        widened=memory.widened,
        doubted_ago_s=None if memory.doubted_at_s is None else max(0.0, now_s - memory.doubted_at_s),
    )


def _longest(one: LongestCall | None, now_s: float) -> _Longest | None:
    return None if one is None else _Longest(time_s=one.time_s, age_s=max(0.0, now_s - one.seen_at_s))


def _hedge(hedge: HedgeDecision) -> _Hedge:
    return _Hedge(on=hedge.on, delay_s=hedge.delay_s, answer_delay_s=hedge.answer_delay_s)


def _engine(one: EngineCapacity, known: CapacityEstimate, now_s: float) -> _Engine:
    heard_s = max(known.at_s, known.looked_at_s)
    return _Engine(
        slots=one.slots,
        service_s=one.service_s,
        source=one.source,
        done=known.done,
        busy=known.busy * one.slowdown,  # a new server knows no usual pace
        span_s=known.span_s,
        narrowed=known.slots,
        heard_ago_s=max(0.0, now_s - heard_s),
    )


def _slow_start(memory: SlowStartMemory, now_s: float) -> _SlowStart:
    return _SlowStart(
        ramps={
            key.engine: _Ramp(ramped_s=ramp.ramped_s, ago_s=max(0.0, now_s - ramp.at_s), held_s=ramp.held_s)
            for key, ramp in memory.ramps.items()
        },
        absent=tuple(sorted(key.engine for key in memory.absent)),
    )


def _without(one: Mapping[str, Any] | None, *names: str) -> Mapping[str, Any] | None:
    return None if one is None else {name: value for name, value in one.items() if name not in names}


# -- restoring ---------------------------------------------------------------------------------------------------


def _taken_up(pool: str, one: _Pool, age_s: float, now_s: float) -> PoolMemory:
    def when_s(ago_s: float) -> float:
        return now_s - age_s - ago_s

    retries = None
    if one.not_retried is not None:
        # As if the sign had come just now: while it holds, it shows whether it continues.
        decided = RetryDecision(statuses=one.not_retried, reason=_REASON, since_s=now_s, sign_at_s=now_s)
        retries = RetryMemory(decided=decided, moved_at_s=now_s)
    limits = None if one.limits is None else _limits_of(one.limits, when_s, now_s)
    hedge = None if one.hedge is None else _hedge_of(one.hedge, now_s)
    engines = {EngineId(pool, name): engine for name, engine in one.engines.items()}
    return PoolMemory(
        decided=replace(
            UNDECIDED,
            limits=None if limits is None else limits.decided,
            hedge=None if hedge is None else hedge.decided,
            retries=None if retries is None else retries.decided,
        ),
        limits=limits,
        hedge=hedge,
        retries=retries,
        capacity=CapacityMemory(
            capacities={
                key: EngineCapacity(slots=engine.slots, service_s=engine.service_s, source=engine.source)
                for key, engine in engines.items()
            },
            estimates={key: _estimate_of(engine, when_s) for key, engine in engines.items()},
        ),
        slow_start=NO_SLOW_START if one.slow_start is None else _slow_start_of(pool, one.slow_start, when_s),
    )


def _limits_of(one: _Limits, when_s: Callable[[float], float], now_s: float) -> TimeLimitMemory:
    return TimeLimitMemory(
        # Limits from the policy are not in here: the first round adds them.
        decided=TimeLimits(
            first_token_s=one.first_token_s,
            between_tokens_s=None,
            stream_total_s=0.0,
            per_try_s=one.per_try_s,
            total_s=0.0,
            reason=_REASON,
            since_s=now_s,
        ),
        answer=_longest_of(one.answer, when_s),
        first_byte=_longest_of(one.first_byte, when_s),
        widened=one.widened,
        doubted_at_s=None if one.doubted_ago_s is None else when_s(one.doubted_ago_s),
        restored_until_s=now_s + HELD_S,
    )


def _longest_of(one: _Longest | None, when_s: Callable[[float], float]) -> LongestCall | None:
    return None if one is None else LongestCall(time_s=one.time_s, seen_at_s=when_s(one.age_s))


def _hedge_of(one: _Hedge, now_s: float) -> HedgeMemory:
    decided = HedgeDecision(
        on=one.on,
        cause=HedgeCause.ROOM if one.on else HedgeCause.WAITS,
        delay_s=one.delay_s,
        answer_delay_s=one.answer_delay_s,
        reason=_REASON,
        since_s=now_s,
    )
    return HedgeMemory(decided=decided, moved_at_s=now_s, restored_until_s=now_s + HELD_S)


def _slow_start_of(pool: str, one: _SlowStart, when_s: Callable[[float], float]) -> SlowStartMemory:
    # Time without a control plane counts: the engine served its part meanwhile. Counts of calls begin at 0 again.
    return SlowStartMemory(
        ramps={
            EngineId(pool, name): RampMemory(at_s=when_s(ramp.ago_s), ramped_s=ramp.ramped_s, held_s=ramp.held_s)
            for name, ramp in one.ramps.items()
        },
        absent=frozenset(EngineId(pool, name) for name in one.absent),
    )


def _estimate_of(one: _Engine, when_s: Callable[[float], float]) -> CapacityEstimate:
    heard_s = when_s(one.heard_ago_s or 0.0)
    return CapacityEstimate(
        done=one.done,
        busy=one.busy,
        span_s=one.span_s,
        at_s=heard_s,
        slots=one.narrowed,
        looked_at_s=heard_s,
    )
