"""Types of ``/v1/tenants``: quotas of tenants, and what this replica's proxies report of them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantTraffic:
    """Requests of a tenant since the server started: within its quota, above it but served (shadow), refused.

    Rates are of the last 2 s.
    """

    admitted: float = 0.0
    over_quota: float = 0.0
    refused: float = 0.0
    served_per_s: float = 0.0
    refused_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantPeriod:
    """A quota of a calendar period in UTC (day, month), and what is used of it; None: no limit.

    ``used_ratio`` is that of the limit with the least left, 1 if it is used up. ``ends_at_unix_s``: end of the
    period.
    """

    period: str
    requests: int | None
    tokens: int | None
    used_requests: float
    used_tokens: float
    used_ratio: float
    ends_at_unix_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantStatus:
    """One tenant of one port; ``others`` stands for all callers that are not named.

    ``requests`` per ``per`` (second, minute, hour) are its quota over all proxies, ``quota_per_s`` the same per
    second; each of ``proxies`` admits an even part. ``tokens``: the same of estimated tokens; None: no limit.
    ``mode``: ``enforce`` or ``shadow``. ``periods``: quotas of a day and a month.
    """

    port: int
    tenant: str
    requests: int
    per: str
    quota_per_s: float
    mode: str
    proxies: int
    traffic: TenantTraffic
    tokens: int | None = None
    periods: tuple[TenantPeriod, ...] = ()

    def used_of(self, period: str) -> float | None:
        """Used ratio of the quota of a calendar period; None without one."""
        return next((one.used_ratio for one in self.periods if one.period == period), None)

    @property
    def name(self) -> str:
        """``PORT/TENANT``."""
        return f"{self.port}/{self.tenant}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantList:
    """Every tenant of every port."""

    tenants: tuple[TenantStatus, ...]
