"""Admission limit of a pool, and how priority classes share it."""

from typing import Final

from policies.document import Spec, documented_field
from policies.fidelity import approximated, kept, lost
from policies.field_targets import FieldTargets, Xds, exported_alike
from policies.quantity import Duration, Percent
from policies.resilience.mode import Mode, mode_of_part

_ISTIO_CEILING: Final = approximated(
    "http2MaxRequests for all engines in rotation, shared by --proxies; it ignores ejections",
    "DestinationRule",
)
_GATEWAY_CEILING: Final = approximated(
    "circuitBreaker.maxParallelRequests for all engines in rotation, shared by --proxies, and "
    "counted once for each route",
    "BackendTrafficPolicy",
)
_GATEWAY_SHARE: Final = approximated("part of the admission limit of its routes", "BackendTrafficPolicy")

WAIT_SHARE: Final = 0.6
"""Allowed wait as a share of deadline minus longest service. Measured: at 0.8 nothing was lost, at 1.2 every late
request; a service time underestimated by a third is in between."""


class ClassLimits(Spec):
    """Share of one priority class in the admission limit of a pool that serves both."""

    share_percent: Percent = documented_field(
        50.0,
        "Guaranteed share of the admission limit; the other class may use what is free.",
        unit="%",
    )


class PriorityLimits(Spec):
    """Shares of the admission limit per priority class, for pools that serve both."""

    interactive: ClassLimits = documented_field(
        ClassLimits(share_percent=90.0),
        "Share of interactive requests.",
        targets=FieldTargets(
            live=Xds.RTDS,
            istio=approximated(
                "part of http2MaxRequests; capacity that the other class leaves free stays unused",
                "DestinationRule",
            ),
            gateway_api=_GATEWAY_SHARE,
        ),
    )
    batch: ClassLimits = documented_field(
        ClassLimits(share_percent=10.0),
        "Share of batch requests.",
        why="the lowest class is shed first, but never fully starved",
        targets=FieldTargets(
            live=Xds.RTDS,
            istio=approximated(
                "a threshold of its own; capacity that the other class leaves free stays unused", "EnvoyFilter"
            ),
            gateway_api=_GATEWAY_SHARE,
        ),
    )


class Limits(Spec):
    """Admission limit, by one of three fields; the first one given wins: maxConcurrent, concurrentPerSlot,
    maxWait."""

    mode: Mode | None = mode_of_part(
        "the admission limit",
        targets=FieldTargets(
            live=Xds.RTDS | Xds.RDS,
            istio=approximated("in shadow a wide limit is exported", "DestinationRule"),
            gateway_api=approximated("in shadow a wide limit is exported", "BackendTrafficPolicy"),
        ),
    )
    learn: bool = documented_field(
        True,
        "Let slots and service time follow measurements, with the pool's values as start and bound.",
        why="a service time wrong by factor k changes the promised wait by factor k",
        targets=exported_alike(Xds.RTDS | Xds.RDS, lost("the limit stays as exported")),
    )
    max_wait: Duration = documented_field(
        2.0,
        "Longest wait for a slot; sets the admission limit to slots x (1 + maxWait / serviceTime).",
        why="measured: with two seconds every answer kept its promise at any capacity",
        unit="duration",
        targets=FieldTargets(
            live=Xds.RTDS | Xds.RDS,
            istio=_ISTIO_CEILING,
            gateway_api=_GATEWAY_CEILING,
        ),
        le=3600,
    )
    concurrent_per_slot: float | None = documented_field(
        None,
        "Admission limit as a multiple of the slots, instead of maxWait.",
        targets=FieldTargets(
            live=Xds.RTDS | Xds.RDS,
            istio=_ISTIO_CEILING,
            gateway_api=_GATEWAY_CEILING,
        ),
        gt=0,
        le=1000,
    )
    max_concurrent: int | None = documented_field(
        None,
        "Admission limit as a number of requests for the whole pool, instead of maxWait.",
        unit="requests",
        targets=FieldTargets(
            live=Xds.RTDS | Xds.RDS,
            istio=approximated(
                "http2MaxRequests, shared by --proxies; each proxy has its own, whatever its demand",
                "DestinationRule",
            ),
            gateway_api=_GATEWAY_CEILING,
        ),
        ge=1,
        le=10_000_000,
    )
    priorities: PriorityLimits = documented_field(PriorityLimits, "Shares per priority class.")
    max_connections: int = documented_field(
        100_000,
        "Connections and pending requests of one Envoy; not the admission limit.",
        why="Envoy's pending limit also counts connections being opened, so a low one rejects cold bursts",
        targets=FieldTargets(
            live=Xds.RTDS | Xds.CDS,
            istio=kept("maxConnections and http1MaxPendingRequests", "DestinationRule"),
            gateway_api=kept("circuitBreaker.maxConnections and maxPendingRequests", "BackendTrafficPolicy"),
        ),
        ge=1,
        le=4_000_000_000,
    )
