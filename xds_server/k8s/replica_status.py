"""Status that a replica publishes to its peers: its proxies, their demand, and the progress of policies.

Stored in annotations of the replica's own Lease. Readers treat it as untrusted: limited in size, validated, and
void once the Lease is not renewed. Proxies are named by a short hash of their node id, so that a moving proxy
known to both replicas counts once.
"""

import json
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from policies.route import PriorityClass
from xds_server.k8s.kube_api import KubeObject
from xds_server.model.pool_traffic import STALE_S, PoolTraffic
from xds_server.model.view import View

PROXIES: Final = "switchgear.dev/proxies"
POLICIES: Final = "switchgear.dev/policies"

GATEWAY: Final = "gateway"

MOST_NAMED: Final = 8000
"""Maximum number of named proxies; further ones are only counted. About 90 KiB of the 256 KiB for annotations."""

MOST_BYTES: Final = 200_000

_MOST_REFUSALS: Final = 8
_MOST_CHARACTERS: Final = 300

ProxyKey = str
"""Short hash of a proxy, or of all sidecars of one kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaProxyGroup:
    """Proxies of one role, zone and region with the same pools (all, if empty).

    ``keys``: named proxies; ``more``: number of further ones.
    """

    role: str
    zone: str
    region: str = ""
    pools: tuple[str, ...] = ()
    keys: tuple[ProxyKey, ...] = ()
    more: int = 0

    @property
    def key(self) -> ProxyKey:
        """Key of the whole group."""
        return key_of(
            "\n".join((self.role, self.zone, *((f"in {self.region}",) if self.region else ()), *self.pools))
        )

    @property
    def count(self) -> int:
        """Number of proxies."""
        return len(self.keys) + self.more


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyDemand:
    """Arriving requests per second by class, and whether some of each class are refused now."""

    interactive_per_s: float
    batch_per_s: float
    sheds_interactive: bool = False
    sheds_batch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NackSummary:
    """A resource that proxies refused: the ``file:line`` origins, and Envoy's message."""

    resource: str
    reason: str
    origins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """Status published by one replica.

    ``proxy_demands``: by pool and key, for a gateway or a group of other proxies. ``digest``: the policies it
    serves. ``confirmed``: the latest policies that all its proxies accepted. ``released``: the policies it serves,
    if an operator released them from the shrink guard. Empty if none.
    """

    groups: tuple[ReplicaProxyGroup, ...] = ()
    asks: Mapping[str, Mapping[ProxyKey, ProxyDemand]] = field(default_factory=dict)
    digest: str = ""
    confirmed: str = ""
    released: str = ""
    refusals: tuple[NackSummary, ...] = ()

    @property
    def proxies(self) -> int:
        """Number of proxies it serves."""
        return sum(group.count for group in self.groups)


NO_STATUS: Final = ReplicaStatus()


@lru_cache(maxsize=65_536)
def key_of(node: str) -> ProxyKey:
    """Short hash of a proxy."""
    return urlsafe_b64encode(blake2b(node.encode(), digest_size=6).digest()).decode()


def proxy_groups(nodes: Mapping[str, View], counts: Mapping[View, int]) -> tuple[ReplicaProxyGroup, ...]:
    """Proxies connected here, gateways first; ``counts`` includes those that share a node id."""
    keys: dict[ReplicaProxyGroup, list[ProxyKey]] = {}
    totals: dict[ReplicaProxyGroup, int] = {}
    for view, count in counts.items():
        kind = _kind(view)
        totals[kind] = totals.get(kind, 0) + count
    for node, view in nodes.items():
        keys.setdefault(_kind(view), []).append(key_of(node))
    found, room = [], MOST_NAMED
    for kind in sorted(
        {*keys, *totals}, key=lambda one: (one.role != GATEWAY, one.role, one.zone, one.region, one.pools)
    ):
        named = sorted(keys.get(kind, ()))[:room]
        room -= len(named)
        whole = max(totals.get(kind, 0), len(keys.get(kind, ())))
        found.append(replace(kind, keys=tuple(named), more=whole - len(named)))
    return tuple(found)


def proxy_demands(
    nodes: Mapping[str, View], traffic: Mapping[str, PoolTraffic], now_s: float
) -> Mapping[str, Mapping[ProxyKey, ProxyDemand]]:
    """Demand of the proxies of ``nodes`` on each pool, rounded to two digits; empty if unknown."""
    found: dict[str, Mapping[ProxyKey, ProxyDemand]] = {}
    for pool, pool_traffic in traffic.items():
        sums: dict[ProxyKey, list[float]] = {}
        for node, proxy in pool_traffic.proxies.items():
            view = nodes.get(node)
            if view is None or now_s - proxy.heard_at_s > STALE_S:
                continue
            kind = _kind(view)
            key = key_of(node) if kind.role == GATEWAY else kind.key
            one = sums.setdefault(key, [0.0, 0.0, 0.0, 0.0])
            for place, rates in ((0, proxy.arrivals_per_s), (2, proxy.shed_per_s)):
                one[place] += rates.get(PriorityClass.INTERACTIVE, 0.0)
                one[place + 1] += rates.get(PriorityClass.BATCH, 0.0)
        if sums:
            found[pool] = {
                key: ProxyDemand(
                    interactive_per_s=_rounded(one[0]),
                    batch_per_s=_rounded(one[1]),
                    sheds_interactive=one[2] > 0,
                    sheds_batch=one[3] > 0,
                )
                for key, one in sorted(sums.items())[:MOST_NAMED]
            }
    return found


def _kind(view: View) -> ReplicaProxyGroup:
    """The group for a view's proxies, empty."""
    return ReplicaProxyGroup(role=view.role, zone=view.zone, region=view.region, pools=tuple(sorted(view.pools)))


def _rounded(rate: float) -> float:
    return float(f"{rate:.2g}")


# -- annotations -------------------------------------------------------------------------------------------


class _AnnotationModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


_Count = Annotated[int, Field(ge=0, le=1_000_000)]
_Rate = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
_Bit = Literal[0, 1]


class _Group(_AnnotationModel):
    role: str
    zone: str
    region: str = ""
    pools: tuple[str, ...] = ()
    keys: tuple[str, ...] = Field(default=(), max_length=MOST_NAMED)
    more: _Count = 0


class _Proxies(_AnnotationModel):
    groups: tuple[_Group, ...] = Field(default=(), max_length=MOST_NAMED)
    asks: Mapping[str, Mapping[str, tuple[_Rate, _Rate, _Bit, _Bit]]] = Field(default_factory=dict)


class _Refusal(_AnnotationModel):
    resource: str
    reason: str
    origins: tuple[str, ...] = ()


class _Policies(_AnnotationModel):
    digest: str = ""
    confirmed: str = ""
    released: str = ""
    refusals: tuple[_Refusal, ...] = ()


def status_annotations(presence: ReplicaStatus) -> Mapping[str, str]:
    """The status as annotations; omits the demand if it does not fit."""
    whom: list[dict[str, Any]] = [
        {
            "role": group.role,
            "zone": group.zone,
            **({"region": group.region} if group.region else {}),
            **({"pools": group.pools} if group.pools else {}),
            **({"keys": group.keys} if group.keys else {}),
            **({"more": group.more} if group.more else {}),
        }
        for group in presence.groups
    ]
    demands = {
        pool: {
            key: [one.interactive_per_s, one.batch_per_s, int(one.sheds_interactive), int(one.sheds_batch)]
            for key, one in found.items()
        }
        for pool, found in presence.asks.items()
    }
    text = _text({"groups": whom, "asks": demands})
    if len(text) > MOST_BYTES:
        text = _text({"groups": whom})
    if len(text) > MOST_BYTES:
        text = _text(
            {
                "groups": [
                    {**one, "keys": (), "more": len(one.get("keys", ())) + one.get("more", 0)} for one in whom
                ]
            }
        )
    return {
        PROXIES: text,
        POLICIES: _text(
            {
                "digest": presence.digest,
                "confirmed": presence.confirmed,
                **({"released": presence.released} if presence.released else {}),
                "refusals": [
                    {
                        "resource": one.resource[:_MOST_CHARACTERS],
                        "reason": one.reason[:_MOST_CHARACTERS],
                        "origins": [origin[:_MOST_CHARACTERS] for origin in one.origins[:_MOST_REFUSALS]],
                    }
                    for one in _first(presence.refusals)
                ],
            }
        ),
    }


def replica_status(lease: KubeObject) -> ReplicaStatus | None:
    """Parse the status in a replica's Lease; None if invalid."""
    metadata = lease.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    if not isinstance(annotations, Mapping):
        return NO_STATUS
    whom, what = annotations.get(PROXIES, "{}"), annotations.get(POLICIES, "{}")
    if not isinstance(whom, str) or not isinstance(what, str) or len(whom) + len(what) > 2 * MOST_BYTES:
        return None
    try:
        proxies, policies = _Proxies.model_validate_json(whom), _Policies.model_validate_json(what)
    except ValidationError:
        return None
    return ReplicaStatus(
        groups=tuple(ReplicaProxyGroup(**one.model_dump()) for one in proxies.groups),
        asks={
            pool: {
                key: ProxyDemand(
                    interactive_per_s=one[0],
                    batch_per_s=one[1],
                    sheds_interactive=bool(one[2]),
                    sheds_batch=bool(one[3]),
                )
                for key, one in found.items()
            }
            for pool, found in proxies.asks.items()
        },
        digest=policies.digest,
        confirmed=policies.confirmed,
        released=policies.released,
        refusals=tuple(NackSummary(**one.model_dump()) for one in policies.refusals),
    )


def _first(refusals: Iterable[NackSummary]) -> list[NackSummary]:
    return sorted(refusals, key=lambda one: one.resource)[:_MOST_REFUSALS]


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)
