"""Operator orders: in force until they end or expire, also across restarts.

An order is for one engine or pool and has a time limit, so that a forgotten one ends by itself. A new order for
the same engine or pool replaces the old one. An order below the capacity floor must be forced.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog
from pydantic import TypeAdapter, ValidationError

from policies.resilience import Breaker
from xds_server.decide.decisions import Ejector, EngineDecision, Health
from xds_server.decide.diff.change import Change, ChangeKind, Subject
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.order import Order, OrderAction
from xds_server.model.text import duration_text
from xds_server.state.atomic_file import RETRY_S, format_mismatch, remove_leftovers, write_atomically
from xds_server.state.write_failures import WriteFailures

FILE_NAME: Final = "orders.json"
FORMAT: Final = 1
"""In each order, because the file is a plain list. An order without it is of format 1."""

LONGEST_S: Final = 7 * 86_400.0
MOST: Final = 10_000
_SHOWN: Final = 80

_log = structlog.get_logger()


class RefusedOrderError(Exception):
    """The order is refused; the message has the reason and a fix."""


class ImpossibleOrderError(RefusedOrderError):
    """The order is invalid, whatever the state of the fleet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """An order in the file: its end is wall-clock time, which survives a restart."""

    pool: str
    engine: str
    action: OrderAction
    until_unix_s: float
    reason: str
    by: str = ""
    force: bool = False
    given_at_unix_s: float = 0.0
    level: int = 0
    format: int = FORMAT


_KEPT: Final = TypeAdapter(tuple[_Kept, ...])
_ONE: Final = TypeAdapter(_Kept)
_MANY: Final = TypeAdapter(list[Mapping[str, object]])


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorViolation:
    """Too little capacity would be left without an engine; ``now``: an order would cause that at once."""

    sentence: str
    now: bool

    @property
    def later(self) -> str:
        """The effect of an unforced order on an engine that is already ejected."""
        return (
            "already ejected, so this costs no capacity now; after recovery it returns to rotation despite the "
            f"order while {self.sentence}. Use --force to keep it out"
        )


def floor_violation(
    leaving: EngineId,
    engines: Sequence[Engine],
    decisions: Mapping[EngineId, EngineDecision],
    breaker: Breaker,
) -> FloorViolation | None:
    """Why ``leaving`` may not stay ejected without force; None if enough slots are left without it.

    An engine ejected by evidence costs nothing now, but is needed once it recovers. One ejected by an order is
    healthy, and returns if another order replaces it. Engines of its tensor-parallel group leave with it.
    """
    group = next((one.tensor_parallel_group for one in engines if one.id == leaving), "")

    def goes(engine: Engine) -> bool:
        return engine.id == leaving or bool(group and engine.tensor_parallel_group == group)

    def takes(engine: Engine) -> bool:
        decision = decisions.get(engine.id)
        return decision is not None and decision.health is Health.HEALTHY

    def ordered(engine: Engine) -> bool:
        decision = decisions.get(engine.id)
        return decision is not None and decision.ejector is Ejector.OPERATOR

    now = any(takes(engine) or ordered(engine) for engine in engines if goes(engine))
    zones = sorted({engine.zone for engine in engines if goes(engine) and engine.zone})
    for place, members in (
        ("the pool", list(engines)),
        *((f"zone {zone}", [engine for engine in engines if engine.zone == zone]) for zone in zones),
    ):
        stay = [engine for engine in members if takes(engine) and not goes(engine)]
        share = 100 * sum(engine.slots for engine in stay) / max(1, sum(engine.slots for engine in members))
        if share < breaker.capacity_floor_percent:
            return FloorViolation(
                sentence=f"this would leave {place} with {share:.0f} % of its slots "
                f"(floor: {breaker.capacity_floor_percent:g} %)",
                now=now,
            )
        if place == "the pool" and len(stay) < breaker.capacity_floor_engines:
            return FloorViolation(
                sentence=f"this would leave the pool with {len(stay)} engines "
                f"(floor: {breaker.capacity_floor_engines})",
                now=now,
            )
    return None


class Orders:
    """All orders in force. ``on_change`` is called when one starts or ends, ``tell`` with the change."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        on_change: Callable[[], None] = lambda: None,
        tell: Callable[[Change], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        disk: WriteFailures | None = None,
    ) -> None:
        """``folder`` keeps them across restarts; without one they end with the process."""
        self._disk = disk or WriteFailures()
        self._path = None if folder is None else folder / FILE_NAME
        self._on_change = on_change
        self._tell = tell
        self._clock = clock
        self._wall = wall
        self._orders: dict[EngineId, Order] = {}
        self._changed = asyncio.Event()
        self._failure = ""

    def active(self, now_s: float) -> Mapping[EngineId, Order]:
        """The orders in force at ``now_s``."""
        return {key: order for key, order in self._orders.items() if order.until_s > now_s}

    def give(self, order: Order) -> Order:
        """Accept an order; raises ``RefusedOrderError``. The capacity floor is not checked here."""
        left_s = order.until_s - self._clock()
        if not 0 < left_s <= LONGEST_S:
            raise ImpossibleOrderError(f"an order must last more than 0 s and at most {duration_text(LONGEST_S)}")
        if not order.reason.strip():
            raise ImpossibleOrderError("a reason is required")
        if len(self._orders) >= MOST and order.engine not in self._orders:
            raise RefusedOrderError(f"the limit of {MOST} orders is reached")
        order = replace(order, given_at_unix_s=self._wall())
        before = self._orders.get(order.engine)
        self._orders[order.engine] = order
        forced = ", forced" if order.force else ""
        self._record(
            order,
            before="none" if before is None else before.effect,
            after=order.effect,
            reason=f"order by {_who(order)} for {duration_text(left_s)}{forced}: {order.reason}",
        )
        return order

    def end(self, engine: EngineId, by: str = "") -> Order | None:
        """End the order for an engine or pool before it expires; None without one."""
        order = self._orders.pop(engine, None)
        if order is not None:
            who = by or "unknown"
            self._record(order, before=order.effect, after="none", reason=f"ended by {who}: {order.reason}")
        return order

    def expire(self) -> float | None:
        """End expired orders; returns the monotonic time of the next expiry, None without orders."""
        now_s = self._clock()
        for key, order in list(self._orders.items()):
            if order.until_s <= now_s:
                del self._orders[key]
                self._record(order, before=order.effect, after="none", reason=f"expired: {order.reason}")
        return min((order.until_s for order in self._orders.values()), default=None)

    async def run(self) -> None:
        """Expire orders and save changes until cancelled."""
        while True:
            next_s = self.expire()
            if self._changed.is_set() or self._failure:
                self._changed.clear()
                await asyncio.to_thread(self._save, self._as_kept())
            waits_s = [max(0.01, next_s - self._clock())] if next_s is not None else []
            waits_s += [RETRY_S] if self._failure else []
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(waits_s, default=None)):
                    await self._changed.wait()

    def restore(self) -> None:
        """Restore orders of an earlier run that are still in force; a damaged file is only reported."""
        if self._path is None:
            return
        remove_leftovers(self._path)
        if not self._path.is_file():
            return
        try:
            kept = _MANY.validate_json(self._path.read_bytes())
        except (OSError, ValidationError) as error:
            _log.error("orders.ignored", file=str(self._path), reason=str(error).splitlines()[0])
            return
        now_s, now_unix_s = self._clock(), self._wall()
        for raw in kept[:MOST]:
            try:
                one = _understood(raw)
            except ValueError as error:
                # The other orders may eject engines that must not return because of this one.
                _log.error("orders.ignored", file=str(self._path), reason=str(error))
                continue
            until_s = now_s + one.until_unix_s - now_unix_s
            if until_s > now_s:
                self._orders[EngineId(one.pool, one.engine)] = Order(
                    engine=EngineId(one.pool, one.engine),
                    action=one.action,
                    until_s=min(until_s, now_s + LONGEST_S),
                    reason=one.reason,
                    by=one.by,
                    force=one.force,
                    given_at_unix_s=one.given_at_unix_s,
                    level=one.level,
                )
        if self._orders:
            _log.info("orders.restored", orders=len(self._orders))

    def _record(self, order: Order, *, before: str, after: str, reason: str) -> None:
        self._changed.set()
        self._tell(
            Change(
                kind=ChangeKind.ORDER,
                subject=Subject(pool=order.engine.pool, engine=order.engine.engine),
                before=before,
                after=after,
                reason=reason,
                returns="" if after == "none" else "the order expires, or `switchgear restore`",
                until_s=None if after == "none" else order.until_s,
            )
        )
        self._on_change()

    def _as_kept(self) -> tuple[_Kept, ...]:
        ahead_s = self._wall() - self._clock()
        return tuple(
            _Kept(
                pool=order.engine.pool,
                engine=order.engine.engine,
                action=order.action,
                until_unix_s=order.until_s + ahead_s,
                reason=order.reason,
                by=order.by,
                force=order.force,
                given_at_unix_s=order.given_at_unix_s,
                level=order.level,
            )
            for order in self._orders.values()
        )

    def _save(self, kept: tuple[_Kept, ...]) -> None:
        """Replace the file in one step."""
        if self._path is None:
            return
        try:
            write_atomically(self._path, _KEPT.dump_json(kept, indent=1))
        except OSError as error:
            self._failure = error.strerror or str(error)
            if self._disk.record_failure(self._path, f"cannot write {self._path}: {self._failure}"):
                _log.error("orders.not_kept", file=str(self._path), reason=self._failure)
        else:
            self._disk.record_success(self._path)
            self._failure = ""


def _understood(raw: Mapping[str, object]) -> _Kept:
    """One order of the file; ``ValueError`` names the order and the problem."""
    whose = f"the order for {str(raw.get('pool'))[:_SHOWN]}/{str(raw.get('engine'))[:_SHOWN]}".rstrip("/")
    version = raw.get("format")
    if isinstance(version, int) and version > FORMAT:
        # A partly understood order may mean its opposite.
        raise ValueError(f"{whose} has {format_mismatch(version, FORMAT)}")
    try:
        return _ONE.validate_python(raw)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise ValueError(f"{whose}: {field} is {str(first['input'])[:_SHOWN]!r}: {first['msg']}") from error


def _who(order: Order) -> str:
    return order.by or "unknown"
