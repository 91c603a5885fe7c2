"""Types of ``/v1/tenants``: quotas of tenants, and what this replica's proxies report of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantTraffic:
    """Requests of a tenant since the server started: within its quota, above it but served (shadow), refused.

    ``over_share`` were refused because a pool had no room for all requests and the tenant was above its share.
    Rates are of the last 2 s.
    """

    admitted: float = 0.0
    over_quota: float = 0.0
    refused: float = 0.0
    served_per_s: float = 0.0
    refused_per_s: float = 0.0
    over_share: float = 0.0
    over_share_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolShareStatus:
    """A tenant's fair share of one pool, in mean requests per second, as this replica divides it over its proxies.

    ``share_per_s`` is its own; ``allowed_per_s`` is what it gets now of the ``demand_per_s`` that it asks for,
    with what others leave. ``refused_percent`` of its requests are refused. ``pressure``: the pool has no room for
    all.
    """

    pool: str
    share_per_s: float
    demand_per_s: float
    allowed_per_s: float
    refused_percent: float
    pressure: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantPeriod:
    """A quota of a calendar period in UTC (day, month), and what is used of it; None: no limit.

    ``used_ratio`` is that of the limit with the least left, 1 if it is used up. ``corrected_tokens``: about what
    the estimated ``used_tokens`` really were. ``ends_at_unix_s``: end of the period.
    """

    period: str
    requests: int | None
    tokens: int | None
    used_requests: float
    used_tokens: float
    used_ratio: float
    ends_at_unix_s: int
    corrected_tokens: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantStatus:
    """One tenant of one port; ``others`` stands for all callers that are not named.

    ``requests`` per ``per`` (second, minute, hour) are its quota over all proxies, ``quota_per_s`` the same per
    second, divided over ``proxies``. ``parts``: the largest parts of proxies of this replica, from 0 to 1 by node
    id, at most 16; empty while all have even ones. ``tokens``: the same of estimated tokens. None: no limit.
    ``mode``: ``enforce`` or ``shadow``. ``periods``: quotas of a day and a month. ``shares`` is empty without fair
    shares.
    """

    port: int
    tenant: str
    requests: int | None
    per: str
    quota_per_s: float | None
    mode: str
    proxies: int
    traffic: TenantTraffic
    tokens: int | None = None
    periods: tuple[TenantPeriod, ...] = ()
    shares: tuple[PoolShareStatus, ...] = ()
    parts: Mapping[str, float] = field(default_factory=dict)

    def used_of(self, period: str) -> float | None:
        """Used ratio of the quota of a calendar period; None without one."""
        return next((one.used_ratio for one in self.periods if one.period == period), None)

    @property
    def used(self) -> float | None:
        """Requests served over its quota; None without one."""
        return None if self.quota_per_s is None else self.traffic.served_per_s / self.quota_per_s

    @property
    def share_per_s(self) -> float | None:
        """Its own share of all pools, in requests per second; None without fair shares."""
        return sum(one.share_per_s for one in self.shares) if self.shares else None

    @property
    def limited_percent(self) -> float | None:
        """Percent of its requests to the fullest pool that are refused; None without fair shares."""
        return max((one.refused_percent for one in self.shares), default=None)

    @property
    def name(self) -> str:
        """``PORT/TENANT``."""
        return f"{self.port}/{self.tenant}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantList:
    """Every tenant of every port."""

    tenants: tuple[TenantStatus, ...]
