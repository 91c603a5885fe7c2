"""Envoy's token buckets for a tenant's quota, and what a request takes from them at a proxy with a part of it.

Every proxy has buckets for the whole quota; where a proxy has a part of it, a request takes more: twice as much
from a proxy with half of the quota. So a part can move without a change of the buckets, which would fill them.

A bucket must hold what some requests take. At a proxy with a small part that is more than the burst, so there are
larger buckets, each four times the one before, and a proxy uses the smallest that holds a request, or four where
its part is small: after a pause it admits from one to four, or from four to sixteen.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from envoy_data_plane.envoy.type.v3 import TokenBucket

from policies.tenants import Quota, QuotaUnit
from xds_server.decide.admission.quota_parts import FLOOR
from xds_server.translate.envoy_values import seconds

STEP: Final = 4
"""Ratio of the sizes of a tenant's buckets."""

FEW: Final = 16
HOLDS: Final = 4
"""Requests that a bucket holds at least where a proxy has less than one of ``FEW`` parts, else one. A bucket of
one or two is often full when the next request comes, and loses what flows in.
"""

UNIT: Final = 1000
"""Tokens of Envoy's bucket for one that is counted, at a proxy with the whole quota: a part is exact to 0.1 %."""

LARGEST_BUCKET: Final = 1_000_000_000
"""Most tokens of a bucket; Envoy's numbers have 32 bits."""

MOST_BURST: Final = 10_000_000
"""Largest burst; with a larger one, parts would be coarse."""

_MOST_PER_S: Final = 4_000_000_000
_MILLISECONDS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaBuckets:
    """Buckets of one quota, in Envoy's tokens.

    ``sizes`` are ascending; each bucket fills with ``per_fill`` in ``interval_ms``. ``unit``: see ``UNIT``.
    """

    unit: int
    sizes: tuple[int, ...]
    per_fill: int
    interval_ms: int

    @property
    def per_s(self) -> float:
        """Tokens per second."""
        return self.per_fill * _MILLISECONDS / self.interval_ms

    def cost(self, part: float) -> float:
        """Tokens for one that is counted, at a proxy with this part of the quota."""
        return self.unit / part

    def place(self, part: float) -> int:
        """Which of the buckets a proxy with this part takes from."""
        least = self.cost(part) * (HOLDS if part * FEW < 1 else 1)
        return next((number for number, size in enumerate(self.sizes) if size >= least), len(self.sizes) - 1)

    def envoy_buckets(self) -> Iterator[TokenBucket]:
        """The same for Envoy."""
        for size in self.sizes:
            yield TokenBucket(
                max_tokens=size,
                tokens_per_fill=self.per_fill,
                fill_interval=seconds(self.interval_ms / _MILLISECONDS),
            )


def request_buckets(quota: Quota, proxies: int) -> QuotaBuckets | None:
    """Buckets of requests; None without a limit. ``proxies``: how many may share it at most is the next power."""
    if quota.requests is None:
        return None
    burst = min(max(1, math.floor(quota.burst_requests)), MOST_BURST)
    sizes = [burst]
    while sizes[-1] * FLOOR < _most_proxies(proxies):
        sizes.append(sizes[-1] * STEP)
    return _buckets(quota.requests, quota.per, sizes)


def token_buckets(quota: Quota, apart: tuple[int, ...] = ()) -> QuotaBuckets | None:
    """The bucket of tokens, of a size that is not in ``apart``; None without a limit."""
    if quota.tokens is None:
        return None
    found = _buckets(quota.tokens, quota.per, [min(max(1, math.floor(quota.burst_tokens)), LARGEST_BUCKET)])
    (size,) = found.sizes
    while size in apart:  # the size tells which bucket Envoy's headers are about
        size += 1
    return QuotaBuckets(unit=found.unit, sizes=(size,), per_fill=found.per_fill, interval_ms=found.interval_ms)


def _most_proxies(proxies: int) -> int:
    """The next power of ``STEP``: buckets change with it only, for a change fills them."""
    most = 1
    while most < proxies:
        most *= STEP
    return most


def _buckets(limit: int, per: QuotaUnit, sizes: list[int]) -> QuotaBuckets:
    unit = max(1, min(UNIT, LARGEST_BUCKET // sizes[-1], _MOST_PER_S * per.seconds // limit))
    per_s = Fraction(limit * unit, per.seconds)
    per_fill = math.ceil(per_s)
    # Envoy counts whole milliseconds: rounded up, the limit is kept.
    return QuotaBuckets(
        unit=unit,
        sizes=tuple(size * unit for size in sizes),
        per_fill=per_fill,
        interval_ms=math.ceil(per_fill * _MILLISECONDS / per_s),
    )
