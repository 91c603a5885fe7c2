"""Division of the access log budget between proxies. Pure.

A proxy's entries cost what reading them costs, whether they count or not. Each second the budget is divided evenly
between hosts, and a host's part between its nodes; what some leave unused, the others may use (max-min fairness).
A node that sends more than its part is asked to sample, and its excess is dropped. Its excess never counts against
the others: no node drops below an even part, its floor.
"""

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from xds_server.model.token_bucket import RateLimit, TokenBucket, available_tokens
from xds_server.telemetry.sampling import BUDGET_PER_S, Sampling

EXCESS: Final = 2.0
"""Admitted entries per part: proxies need a moment to follow a lower sampling."""

BURST_S: Final = 1.0
"""Seconds of its part that a node may send at once, as after an outage."""

QUIET_S: Final = 60.0
"""A node without entries for this long is forgotten."""

MAX_NODES: Final = 16_384
"""Limit of remembered nodes: the limit of streams. Further ones share one part."""

MIN_FLOOR_PER_S: Final = 20.0
"""Every node may send this much each second: three small messages."""


class Reporter(NamedTuple):
    """The source of entries: a host (address and proven identities), and its node id, empty until it is known."""

    host: str
    node: str


_FURTHER: Final = Reporter("", "")


def fair_part(budget: float, demands: Collection[float]) -> float:
    """The most that one may use, so that all use at most ``budget``; all of it if every demand fits."""
    if sum(demands) <= budget:
        return budget
    left, rest = budget, len(demands)
    for demand in sorted(demands):
        if demand * rest >= left:
            return left / rest
        left -= demand
        rest -= 1
    return budget


class _Account:
    """What one node sends, and its part."""

    __slots__ = ("bucket", "demand_per_s", "dropped", "heard_at_s", "part_per_s", "sampling", "sent")

    def __init__(self, part_per_s: float) -> None:
        self.part_per_s = part_per_s
        self.bucket: TokenBucket | None = None
        self.sent = 0.0
        self.dropped = False
        self.demand_per_s = 0.0
        self.heard_at_s = 0.0
        self.sampling = Sampling()


class EntryBudget:
    """Admits entries by node, and sets the sampling of each node."""

    def __init__(self, per_s: float = BUDGET_PER_S) -> None:
        self._per_s = per_s
        self._accounts: dict[Reporter, _Account] = {}
        self._floor_per_s = per_s
        self._above_floors: TokenBucket | None = None
        self._shares: Mapping[str, float] = MappingProxyType({})

    def admits(self, reporter: Reporter, cost: float, now_s: float) -> bool:
        """Whether a message of this cost is read; a node in debt waits for its part."""
        account = self._accounts.get(reporter)
        if account is None:
            if len(self._accounts) >= MAX_NODES:
                reporter = _FURTHER
            account = self._accounts.setdefault(reporter, _Account(self._per_s))
        account.sent += cost
        account.heard_at_s = now_s
        # A message may exceed what is left: no part is too small for one message now and then.
        tokens = _available(account.bucket, EXCESS * account.part_per_s, now_s)
        if tokens <= 0:
            return False
        if account.sent > self._floor_per_s:
            # Many nodes that exceed their floors in the same second, before the next division.
            common = _available(self._above_floors, EXCESS * self._per_s, now_s)
            if common <= 0:
                return False
            self._above_floors = TokenBucket(tokens=common - cost, at_s=now_s)
        account.bucket = TokenBucket(tokens=tokens - cost, at_s=now_s)
        return True

    def begins_to_drop(self, reporter: Reporter) -> bool:
        """Whether this is the first dropped message of a node since its last second without any."""
        account = self._accounts.get(reporter)
        if account is None or account.dropped:
            return False
        account.dropped = True
        return True

    def share(self, reporter: Reporter, now_s: float) -> float:
        """The share of calls that entries of this node stand for."""
        account = self._accounts.get(reporter)
        return 1.0 if account is None else account.sampling.counted(now_s)

    @property
    def shares(self) -> Mapping[str, float]:
        """The share of calls to report, by node; absent: all. The same object until it changes."""
        return self._shares

    def review(self, passed_s: float, now_s: float) -> Iterator[tuple[Reporter, float, float]]:
        """Divide the budget again; returns reporters whose share changed, with the new and the previous one."""
        by_host: dict[str, dict[Reporter, _Account]] = {}
        for reporter, account in list(self._accounts.items()):
            if now_s - account.heard_at_s > QUIET_S:
                del self._accounts[reporter]
                continue
            account.demand_per_s = account.sent / passed_s / account.sampling.share
            by_host.setdefault(reporter.host, {})[reporter] = account
        hosts = {host: sum(one.demand_per_s for one in some.values()) for host, some in by_host.items()}
        of_host = fair_part(self._per_s, hosts.values())
        self._floor_per_s = max(MIN_FLOOR_PER_S, self._per_s / max(1, len(self._accounts)))
        shares: dict[str, float] = {}
        for some in by_host.values():
            part = fair_part(of_host, [one.demand_per_s for one in some.values()])
            for reporter, account in some.items():
                account.part_per_s = part
                if account.sent / passed_s <= part:
                    account.dropped = False
                before = account.sampling
                account.sampling = before.after(account.sent / passed_s, now_s, part)
                account.sent = 0.0
                share = account.sampling.share
                if share != before.share:
                    yield reporter, share, before.share
                if share != 1.0 and reporter.node:
                    shares[reporter.node] = min(share, shares.get(reporter.node, 1.0))
        if shares != self._shares:
            self._shares = MappingProxyType(shares)


def _available(bucket: TokenBucket | None, per_s: float, now_s: float) -> float:
    return available_tokens(bucket, RateLimit(burst=per_s * BURST_S, per_s=per_s), now_s)
