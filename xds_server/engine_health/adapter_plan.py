"""Which engine is asked next to load which LoRA adapter (``spec.adapters`` of an EnginePool). Pure.

An adapter counts where an engine lists it at ``/v1/models``, never where an engine says that it loaded it. Missing
ones are asked for in the zone with the fewest, there in the engine with the most slots per adapter, and only in
engines that are in rotation and have listed their adapters lately. An engine loads one adapter at a time, a pool a
tenth of its engines, because vLLM stands still for a moment while it loads weights.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, NamedTuple

from policies.model import PolicySet
from policies.pool import LoadedAdapter
from xds_server.decide.decisions import Decisions, Health
from xds_server.model.backoff import ExponentialBackoff
from xds_server.model.fleet import Engine, EngineId, Fleet
from xds_server.model.pod_state import PodPhase

FRESH_S: Final = 30.0
"""An engine without a report for this long is asked for nothing."""

LISTED_WITHIN_S: Final = 10.0
"""Time for a loaded adapter to be listed: five readings of the list."""

AWAY_S: Final = 30.0
"""An ejected engine counts with its adapters for this long; then another one loads them."""

BACKOFF: Final = ExponentialBackoff(first_s=10.0, most_s=600.0)
"""After failed loads of one adapter by one engine; another process of the engine is asked at once."""

_PER_POOL: Final = 10
_MOST_PER_POOL: Final = 8


class Situation(NamedTuple):
    """The served policies, with the fleet and the decisions of the latest round."""

    policies: PolicySet
    fleet: Fleet
    decisions: Decisions


class AdapterLoad(NamedTuple):
    """One adapter in one engine."""

    engine: EngineId
    adapter: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAttempt:
    """The last attempt: ``asked``: the engine answered that it loaded it, and has until ``until_s`` to list it.

    Otherwise it failed ``failures`` times in a row, for the reason ``trouble``, and is asked again at ``until_s``.
    """

    boot_id: str
    asked: bool
    until_s: float
    failures: int = 0
    trouble: str = ""


Attempts = Mapping[AdapterLoad, LoadAttempt]
NO_ATTEMPTS: Final[Attempts] = MappingProxyType({})


class Settled(NamedTuple):
    """Attempts after a look at the lists, and how those ended that ended now: ``loaded`` or ``unlisted``."""

    attempts: Attempts
    ended: tuple[tuple[AdapterLoad, str], ...]


def settled(attempts: Attempts, situation: Situation, now_s: float) -> Settled:
    """The attempts that still matter: not those of listed adapters, earlier processes or removed policies."""
    kept: dict[AdapterLoad, LoadAttempt] = {}
    ended: list[tuple[AdapterLoad, str]] = []
    for key, attempt in attempts.items():
        engine = situation.fleet.engine(key.engine)
        pool = situation.policies.pools.get(key.engine.pool)
        if engine is None or pool is None or all(one.name != key.adapter for one in pool.spec.adapters):
            continue
        if _lists(engine, key.adapter):
            if attempt.asked:
                ended.append((key, "loaded"))
        elif boot_id(engine) != attempt.boot_id:
            continue
        elif attempt.asked and now_s >= attempt.until_s:
            ended.append((key, "unlisted"))
            kept[key] = failed(
                attempt, attempt.boot_id, "it answered that it loaded it, and does not list it", now_s
            )
        else:
            kept[key] = attempt
    return Settled(attempts=kept, ended=tuple(ended))


def accepted(before: LoadAttempt | None, boot_id: str, now_s: float) -> LoadAttempt:
    """An engine answered that it loaded the adapter."""
    failures = before.failures if before is not None and before.boot_id == boot_id else 0
    return LoadAttempt(boot_id=boot_id, asked=True, until_s=now_s + LISTED_WITHIN_S, failures=failures)


def failed(before: LoadAttempt | None, boot_id: str, trouble: str, now_s: float) -> LoadAttempt:
    """An engine did not load the adapter."""
    failures = before.failures if before is not None and before.boot_id == boot_id else 0
    attempt = LoadAttempt(boot_id=boot_id, asked=False, until_s=0.0, failures=failures + 1, trouble=trouble)
    return replace(attempt, until_s=now_s + BACKOFF.wait_s(attempt.failures))


def due_loads(
    situation: Situation, attempts: Attempts, running: Collection[AdapterLoad], now_s: float
) -> tuple[AdapterLoad, ...]:
    """The loads to ask for now; ``running`` are not answered yet."""
    before = _Asked(attempts, running, now_s)
    return tuple(
        load
        for name, pool in situation.policies.pools.items()
        if pool.spec.adapters
        for load in _of_pool(pool.spec.adapters, situation.fleet.pools.get(name, ()), situation.decisions, before)
    )


class _Asked(NamedTuple):
    attempts: Attempts
    running: Collection[AdapterLoad]
    now_s: float

    @property
    def busy(self) -> frozenset[EngineId]:
        """Engines that load an adapter, as far as they know."""
        loading = {load.engine for load, attempt in self.attempts.items() if attempt.asked}
        return frozenset(loading | {load.engine for load in self.running})

    def pending(self, load: AdapterLoad) -> bool:
        """Whether it was asked for, and may still be listed."""
        attempt = self.attempts.get(load)
        return load in self.running or (attempt is not None and attempt.asked)

    def waits(self, load: AdapterLoad) -> bool:
        """Whether it failed a short time ago."""
        attempt = self.attempts.get(load)
        return attempt is not None and self.now_s < attempt.until_s


def _of_pool(
    adapters: tuple[LoadedAdapter, ...], engines: tuple[Engine, ...], decisions: Decisions, before: _Asked
) -> Iterator[AdapterLoad]:
    busy = {engine.id for engine in engines} & before.busy
    room = max(1, min(_MOST_PER_POOL, len(engines) // _PER_POOL)) - len(busy)
    for adapter in adapters:
        holders = [engine for engine in engines if _counts(engine, adapter.name, decisions, before)]
        missing = min(adapter.engines or len(engines), len(engines)) - len(holders)
        if missing <= 0 or room <= 0:
            continue
        zones = Counter(engine.zone for engine in holders)
        usable = [
            engine
            for engine in engines
            if engine.id not in busy
            and _usable(engine, adapter.name, decisions, before.now_s)
            and not before.waits(AdapterLoad(engine.id, adapter.name))
        ]
        while missing > 0 and room > 0 and usable:
            chosen = min(usable, key=lambda one: (zones[one.zone], -_slots_per_adapter(one), one.id.engine))
            usable.remove(chosen)
            busy.add(chosen.id)
            zones[chosen.zone] += 1
            missing, room = missing - 1, room - 1
            yield AdapterLoad(chosen.id, adapter.name)


def _counts(engine: Engine, adapter: str, decisions: Decisions, before: _Asked) -> bool:
    """Whether this engine has the adapter, or soon will, and is not away for long."""
    if before.pending(AdapterLoad(engine.id, adapter)):
        return True
    if not _lists(engine, adapter) or engine.pod_phase is not PodPhase.PRESENT:
        return False
    decision = decisions.engines.get(engine.id)
    return decision is None or decision.health is Health.HEALTHY or before.now_s - decision.since_s < AWAY_S


def _usable(engine: Engine, adapter: str, decisions: Decisions, now_s: float) -> bool:
    """Whether the engine can be asked: in rotation, heard of, without the adapter by its own list."""
    decision, report = decisions.engines.get(engine.id), engine.report
    return (
        report is not None
        and report.adapters is not None
        and adapter not in report.adapters
        and report.verdict.good
        and engine.received_at_s is not None
        and now_s - engine.received_at_s < FRESH_S
        and engine.pod_phase is PodPhase.PRESENT
        and decision is not None
        and decision.health is Health.HEALTHY
        and not decision.floor
    )


def _slots_per_adapter(engine: Engine) -> float:
    known = () if engine.report is None or engine.report.adapters is None else engine.report.adapters
    return engine.slots / (1 + len(known))


def _lists(engine: Engine, adapter: str) -> bool:
    return engine.report is not None and engine.report.adapters is not None and adapter in engine.report.adapters


def boot_id(engine: Engine | None) -> str:
    """The engine's process; empty if unknown."""
    return "" if engine is None or engine.report is None else engine.report.boot_id
