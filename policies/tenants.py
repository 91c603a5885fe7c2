"""Tenants of a listener: how Envoy tells them apart, how many requests and tokens each may send, and their shares.

Names come from the policy alone, so the number of buckets and of metric labels is bounded by it.
"""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from policies.caller_auth import parse_claim_header
from policies.document import Spec, documented_field
from policies.fidelity import lost
from policies.field_checks import ListKeys
from policies.field_targets import FieldTargets, Xds
from policies.resilience.mode import Mode

OTHERS: Final = "others"
"""Name of the place that all callers without a named tenant share."""

_ISTIO: Final = lost("write an EnvoyFilter with envoy.filters.http.local_ratelimit; its limit is per proxy")
_GATEWAY: Final = lost("write a BackendTrafficPolicy of Envoy Gateway: rateLimit")


_NO_SHARES: Final = lost("without a counterpart: shares follow demand every second; use quotas")
_SHARES: Final = FieldTargets(live=Xds.RTDS, istio=_NO_SHARES, gateway_api=_NO_SHARES)


def _targets(live: Xds) -> FieldTargets:
    return FieldTargets(live=live, istio=_ISTIO, gateway_api=_GATEWAY)


class QuotaUnit(StrEnum):
    """The time that a quota is for."""

    SECOND = "second"
    MINUTE = "minute"
    HOUR = "hour"

    @property
    def seconds(self) -> int:
        """Its length."""
        return {QuotaUnit.SECOND: 1, QuotaUnit.MINUTE: 60, QuotaUnit.HOUR: 3600}[self]


TOKENS_BURST_S: Final = 60
"""Seconds of a quota of tokens that its default burst is: one request may need as much as many seconds admit."""


class QuotaPeriod(StrEnum):
    """A calendar period in UTC whose usage is counted until it ends; the values are words for people."""

    DAY = "day"
    MONTH = "month"


class PeriodQuota(Spec):
    """Requests and tokens that may be used up at any time within a calendar period."""

    requests: int | None = documented_field(
        None,
        "Requests that engines answer within the period, over all proxies of the port. Default: no limit.",
        targets=_targets(Xds.NONE),
        ge=1,
        le=1_000_000_000_000_000,
    )
    tokens: int | None = documented_field(
        None,
        "Tokens of these requests within the period, estimated like `tokens` of the quota. Default: no limit.",
        targets=_targets(Xds.RDS | Xds.LDS | Xds.ECDS),
        ge=1,
        le=1_000_000_000_000_000,
    )


class Quota(Spec):
    """Requests, and tokens, that are admitted over all proxies, and the share of a full pool."""

    requests: int | None = documented_field(
        None,
        "Requests admitted per unit of time, over all proxies of the port. Required unless `fairShares` is set; "
        "default then: no limit.",
        targets=_targets(Xds.RDS | Xds.ECDS),
        ge=1,
        le=1_000_000_000,
    )
    per: QuotaUnit = documented_field(
        QuotaUnit.SECOND,
        "Unit of time. Requests are admitted evenly within it, after the burst.",
        targets=_targets(Xds.RDS | Xds.ECDS),
    )
    burst: int | None = documented_field(
        None,
        "Requests admitted at once after a pause, over all proxies, at least 1 at each. Default: what the quota "
        "admits in 1 s.",
        why="each change of the port's routes fills the bucket again, so a large burst makes the limit loose",
        targets=_targets(Xds.RDS | Xds.ECDS),
        ge=1,
        le=1_000_000_000,
    )

    tokens: int | None = documented_field(
        None,
        "Tokens of prompts and answers admitted per unit of time, over all proxies of the port, as estimated when "
        "a request arrives: bytes of its body / `bytesPerToken`, plus the most tokens that it asks for, or "
        "`answerTokens`. Default: no limit.",
        targets=_targets(Xds.RDS | Xds.LDS | Xds.ECDS),
        ge=1,
        le=1_000_000_000,
    )
    tokens_burst: int | None = documented_field(
        None,
        "Tokens admitted at once after a pause, over all proxies. A request of more than a proxy's part counts as "
        "that part. Default: what the quota admits in 60 s.",
        why="each change of the port's routes fills the bucket again, so a large burst makes the limit loose; a "
        "burst below the largest request times the proxies does, too",
        targets=_targets(Xds.RDS | Xds.ECDS),
        ge=1,
        le=1_000_000_000,
    )

    per_day: PeriodQuota | None = documented_field(
        None,
        "Limits for a day, from 0:00 to 24:00 UTC, in addition. The control plane counts usage, also across "
        "restarts.",
    )
    per_month: PeriodQuota | None = documented_field(None, "The same for a calendar month in UTC.")
    weight: float = documented_field(
        1.0,
        "Share of a pool without room for all requests, relative to the other tenants, with `fairShares`.",
        targets=_SHARES,
        gt=0,
        le=1000,
    )
    min_percent: float = documented_field(
        0.0,
        "Least share of such a pool, in percent of its capacity, whatever the weights are.",
        unit="percent",
        targets=_SHARES,
        ge=0,
        le=100,
    )

    @property
    def periods(self) -> dict[QuotaPeriod, PeriodQuota]:
        """Limits of calendar periods, the shortest first; only those that are set."""
        found = {QuotaPeriod.DAY: self.per_day, QuotaPeriod.MONTH: self.per_month}
        return {period: limit for period, limit in found.items() if limit is not None}

    @property
    def is_divided(self) -> bool:
        """Whether proxies have parts of it."""
        return self.requests is not None or self.tokens is not None

    @property
    def counts_tokens(self) -> bool:
        """Whether tokens are limited."""
        return self.tokens is not None or any(one.tokens is not None for one in self.periods.values())

    @property
    def per_s(self) -> float | None:
        """Requests per second; None: no limit."""
        return None if self.requests is None else self.requests / self.per.seconds

    @property
    def burst_requests(self) -> float:
        """Requests at once over all proxies; 0 without a limit."""
        return (self.per_s or 0.0) if self.burst is None else self.burst

    @property
    def burst_tokens(self) -> float:
        """Tokens at once over all proxies; 0 without a limit."""
        if self.tokens_burst is not None:
            return self.tokens_burst
        return (self.tokens or 0) / self.per.seconds * TOKENS_BURST_S

    def __str__(self) -> str:
        limits = [] if self.requests is None else [f"{self.requests}/{self.per.value}"]
        limits += [] if self.tokens is None else [f"{self.tokens} tokens/{self.per.value}"]
        return ", ".join(limits) or "no quota"


class Tenant(Quota):
    """A tenant with a quota of its own."""

    name: str = documented_field(
        ...,
        "Value of the header that names the tenant; unique, not `others`.",
        targets=_targets(Xds.RDS | Xds.ECDS),
        pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.@:/]*[A-Za-z0-9])?$",
        max_length=63,
    )


ANSWER_TOKENS: Final = 1000
BYTES_PER_TOKEN: Final = 4
"""How a port estimates the tokens of a request, unless its tenants say otherwise."""


class Tenants(Spec):
    """The tenants of a listener and their quotas."""

    header: Annotated[str, Field(max_length=64), AfterValidator(parse_claim_header)] = documented_field(
        ...,
        "Request header with the tenant's name: one that `jwt.claimToHeaders` or `tls.callers.identityHeader` "
        "writes, or any with trustHeader.",
        targets=_targets(Xds.RDS | Xds.LDS | Xds.ECDS),
    )
    trust_header: bool = documented_field(
        False,
        "Believe a header that no claim writes. Only where a proxy in front of Envoy sets or removes it.",
        why="a caller that can send the header takes the quota of any tenant",
        targets=_targets(Xds.NONE),
    )
    answer_tokens: int = documented_field(
        ANSWER_TOKENS,
        "Tokens that count for the answer to a request that states no limit (`max_tokens` and the like).",
        targets=_targets(Xds.RDS | Xds.LDS | Xds.ECDS),
        ge=0,
        le=1_000_000,
    )
    bytes_per_token: int = documented_field(
        BYTES_PER_TOKEN,
        "Bytes of a request's body that count as a token of its prompt.",
        targets=_targets(Xds.RDS | Xds.LDS | Xds.ECDS),
        ge=1,
        le=1000,
    )
    mode: Mode = documented_field(
        Mode.ENFORCE,
        "enforce: answer 429 above a quota. shadow: serve the request and count it as over its quota.",
        targets=_targets(Xds.RDS | Xds.RTDS | Xds.ECDS),
    )
    fair_shares: bool = documented_field(
        False,
        "While a pool has no room for all requests, answer 429 to tenants above their share of its capacity, so "
        "that the others lose nothing. What a tenant leaves of its share is lent to the others.",
        targets=FieldTargets(live=Xds.LDS | Xds.RDS | Xds.RTDS, istio=_NO_SHARES, gateway_api=_NO_SHARES),
    )
    named: tuple[Tenant, ...] = documented_field(
        (),
        "Tenants with a quota of their own.",
        checks=(ListKeys(("name",)),),
        max_length=256,
    )
    others: Quota = documented_field(..., "The quota that all other callers share, those without the header too.")

    @property
    def has_quotas(self) -> bool:
        """Whether some tenant has a quota of requests or tokens, for a calendar period too."""
        return any(
            one.requests is not None or one.tokens is not None or one.periods for one in self.quotas().values()
        )

    @property
    def counts_tokens(self) -> bool:
        """Whether tokens of some tenant are limited."""
        return any(one.counts_tokens for one in self.quotas().values())

    @property
    def counts_usage(self) -> bool:
        """Whether some tenant has a quota for a calendar period."""
        return any(one.periods for one in self.quotas().values())

    def quotas(self) -> dict[str, Quota]:
        """Quotas by name, others last."""
        return {**{one.name: one for one in self.named}, OTHERS: self.others}
