"""What tenants have used of their quotas in the current calendar periods."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from types import MappingProxyType
from typing import Final

from policies.tenants import QuotaPeriod
from xds_server.model.pool_traffic import TenantId


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """Requests that engines answered, their estimated tokens, and about what these really were."""

    requests: float = 0.0
    tokens: float = 0.0
    corrected: float = 0.0


NOT_USED: Final = Used()


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantUsage:
    """Usage of tenants in the day and the month of ``today`` (UTC); an absent tenant used nothing."""

    today: date
    used: Mapping[QuotaPeriod, Mapping[TenantId, Used]] = field(default_factory=lambda: _NONE)

    def of(self, key: TenantId, period: QuotaPeriod) -> Used:
        """What a tenant used in the current period of this kind."""
        return self.used.get(period, {}).get(key, NOT_USED)


_NONE: Final[Mapping[QuotaPeriod, Mapping[TenantId, Used]]] = MappingProxyType({})

NO_USAGE: Final = TenantUsage(today=date.min)
"""Before anything was counted, and without quotas for calendar periods."""


DAY_S: Final = 86_400.0
"""Days in UTC have no leap seconds here, as in Unix time."""


def utc_day(unix_s: float) -> date:
    """The calendar day in UTC."""
    return datetime.fromtimestamp(unix_s, UTC).date()


def period_end_unix_s(today: date, period: QuotaPeriod) -> int:
    """When the period of this day ends, in seconds since the epoch."""
    following = today + timedelta(days=1)
    if period is QuotaPeriod.MONTH:
        following = (today.replace(day=1) + timedelta(days=31)).replace(day=1)
    return int(datetime.combine(following, time(), UTC).timestamp())
