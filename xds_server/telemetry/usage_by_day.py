"""Usage of tenants by calendar day (UTC), model, requests and tokens. Bounded by policies and days.

Only requests that an engine began to answer count: what was refused, or failed before, gives its tokens back. The
wall clock decides about the day: set back, it continues the earlier day; set forward, it begins a later one.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from types import MappingProxyType
from typing import Final

from policies.model import PolicySet
from policies.tenants import OTHERS, QuotaPeriod
from xds_server.model.pool_traffic import TenantId
from xds_server.model.tenant_usage import DAY_S, NO_USAGE, TenantUsage, Used, period_end_unix_s, utc_day

KEPT_DAYS: Final = 62
"""The current month and the previous one."""

MOST_ROWS: Final = 20_000
"""Rows of a day; more tenants and models, after many edits of policies, count as one row of each port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """Usage of a tenant on one day, of one model.

    ``tokens`` as estimated when requests arrived; ``corrected``: about what they really cost.
    """

    port: int
    tenant: str
    model: str
    requests: float
    tokens: float
    corrected: float


_RowKey = tuple[int, str, str]


class UsageByDay:
    """Usage by day; ``changed`` are days that differ from what was saved."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._days: dict[date, dict[_RowKey, list[float]]] = {}
        self._today = date.min
        self._today_unix_s = (0.0, 0.0)  # begin and end; no time is within it yet
        self._totals: dict[QuotaPeriod, dict[TenantId, list[float]]] = {}
        self.changed: set[date] = set()

    def add(self, key: TenantId, model: str, *, requests: float, tokens: float, corrected: float) -> None:
        """Count requests of a tenant now."""
        today = self._turn()
        rows = self._days.setdefault(today, {})
        port, tenant = key
        row = (port, tenant, model)
        if row not in rows and len(rows) >= MOST_ROWS:
            row = (port, OTHERS, "")
        for counts in (
            rows.setdefault(row, [0.0, 0.0, 0.0]),
            *(of.setdefault(key, [0.0, 0.0, 0.0]) for of in self._totals.values()),
        ):
            counts[0] += requests
            counts[1] += tokens
            counts[2] += corrected
        self.changed.add(today)
        self._forget()

    def restore(self, day: date, rows: tuple[UsageRow, ...]) -> None:
        """Begin with what was saved for a day."""
        self._days[day] = {
            (row.port, row.tenant, row.model): [row.requests, row.tokens, row.corrected] for row in rows
        }
        self._today_unix_s = (0.0, 0.0)  # totals are to be made again
        self._forget()

    @property
    def days(self) -> tuple[date, ...]:
        """Days with usage, the oldest first."""
        return tuple(sorted(self._days))

    def rows(self, day: date) -> tuple[UsageRow, ...]:
        """Usage of a day by port, tenant and model."""
        return tuple(
            UsageRow(
                port=port,
                tenant=tenant,
                model=model,
                requests=round(requests, 3),
                tokens=round(tokens, 3),
                corrected=round(corrected, 3),
            )
            for (port, tenant, model), (requests, tokens, corrected) in sorted(self._days.get(day, {}).items())
        )

    def current(self, policies: PolicySet) -> TenantUsage:
        """Usage in the current periods; ``NO_USAGE`` if these policies have no quotas for them."""
        if not any(
            tenants is not None and tenants.counts_usage
            for tenants in (route.spec.listener.tenants for route in policies.routes.values())
        ):
            return NO_USAGE
        return TenantUsage(
            today=self._turn(),
            used=MappingProxyType(
                {
                    period: MappingProxyType(
                        {
                            key: Used(requests=requests, tokens=tokens, corrected=corrected)
                            for key, (requests, tokens, corrected) in of.items()
                        }
                    )
                    for period, of in self._totals.items()
                }
            ),
        )

    def _turn(self) -> date:
        """The current day; makes its totals if it is another one than before."""
        now_s, (from_s, to_s) = self._wall(), self._today_unix_s
        if from_s <= now_s < to_s:  # for each answer, so without the calendar
            return self._today
        today = self._today = utc_day(now_s)
        to_s = period_end_unix_s(today, QuotaPeriod.DAY)
        self._today_unix_s = (to_s - DAY_S, to_s)
        this_month = [day for day in self._days if (day.year, day.month) == (today.year, today.month)]
        self._totals = {
            QuotaPeriod.DAY: _totals([self._days.get(today, {})]),
            QuotaPeriod.MONTH: _totals(self._days[day] for day in this_month),
        }
        return today

    def _forget(self) -> None:
        # By number, not by age: a clock that was set forward for a moment must not cost the days before.
        while len(self._days) > KEPT_DAYS:
            oldest = min(day for day in self._days if day != self._today)
            del self._days[oldest]
            self.changed.discard(oldest)


def _totals(days: Iterable[Mapping[_RowKey, list[float]]]) -> dict[TenantId, list[float]]:
    found: dict[TenantId, list[float]] = {}
    for rows in days:
        for (port, tenant, _), used in rows.items():
            counts = found.setdefault((port, tenant), [0.0, 0.0, 0.0])
            for place, count in enumerate(used):
                counts[place] += count
    return found
