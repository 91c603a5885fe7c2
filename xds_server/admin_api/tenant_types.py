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
class TenantStatus:
    """One tenant of one port; ``others`` stands for all callers that are not named.

    ``requests`` per ``per`` (second, minute, hour) are its quota over all proxies, ``quota_per_s`` the same per
    second; each of ``proxies`` admits an even part. ``tokens``: the same of estimated tokens; None: no limit.
    ``mode``: ``enforce`` or ``shadow``.
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

    @property
    def name(self) -> str:
        """``PORT/TENANT``."""
        return f"{self.port}/{self.tenant}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantList:
    """Every tenant of every port."""

    tenants: tuple[TenantStatus, ...]
