"""How much of a pool's traffic is let in, and how priority classes share it."""

from typing import Final

from policies.document import Spec, documented_field
from policies.fidelity import approximated, kept, lost
from policies.field_targets import FieldTargets, Xds, exported_alike
from policies.quantity import Duration, Percent
from policies.resilience.mode import Mode, mode_of_part

_ISTIO_CEILING: Final = approximated(
    "http2MaxRequests, as it is while all engines are well, shared by --proxies; it follows no engine that leaves",
    "DestinationRule",
)
_GATEWAY_CEILING: Final = approximated(
    "circuitBreaker.maxParallelRequests, as it is while all engines are well, shared by "
    "--proxies, and counted once for each route",
    "BackendTrafficPolicy",
)
_GATEWAY_SHARE: Final = approximated("part of the ceiling of its routes", "BackendTrafficPolicy")

WAIT_SHARE: Final = 0.6
"""Of deadline minus longest service: what a request may wait. Measured: at 0.8 nothing was lost, at 1.2 everything
that was admitted late; a service time guessed too low by a third is between the two."""


class ClassLimits(Spec):
    """How one priority class shares the ceiling of a pool that serves both."""

    share_percent: Percent = documented_field(
        50.0,
        "Share of the pool's ceiling this class is sure of; what it leaves free the other class may use.",
        unit="%",
    )


class PriorityLimits(Spec):
    """Ceiling shares per priority class; they matter only for pools that serve both, when both want more."""

    interactive: ClassLimits = documented_field(
        ClassLimits(share_percent=90.0),
        "Share of interactive requests.",
        targets=FieldTargets(
            live=Xds.RTDS,
            istio=approximated(
                "part of http2MaxRequests; what the other class leaves free stays unused", "DestinationRule"
            ),
            gateway_api=_GATEWAY_SHARE,
        ),
    )
    batch: ClassLimits = documented_field(
        ClassLimits(share_percent=10.0),
        "Share of batch requests.",
        why="the lowest class is shed first, and never starved altogether",
        targets=FieldTargets(
            live=Xds.RTDS,
            istio=approximated(
                "a threshold of its own; what the other class leaves free stays unused", "EnvoyFilter"
            ),
            gateway_api=_GATEWAY_SHARE,
        ),
    )


class Limits(Spec):
    """How much is let in. One of three ways; the first one given wins: absolute, per slot, by wait."""

    mode: Mode | None = mode_of_part(
        "the admission ceiling",
        targets=FieldTargets(
            live=Xds.RTDS | Xds.RDS,
            istio=approximated("in shadow no ceiling is exported but a wide one", "DestinationRule"),
            gateway_api=approximated("in shadow no ceiling is exported but a wide one", "BackendTrafficPolicy"),
        ),
    )
    learn: bool = documented_field(
        True,
        "Whether slots and service time follow what is measured, with the pool's own numbers as start and bound.",
        why="a wrong service time by k stretches or shrinks the promised wait by k",
        targets=exported_alike(Xds.RTDS | Xds.RDS, lost("the ceiling stays as it was when exported")),
    )
    max_wait: Duration = documented_field(
        2.0,
        "How long a request may wait for a slot; sets the ceiling to slots x (1 + maxWait / serviceTime).",
        why="two seconds were measured to keep every answer within its promise at any capacity",
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
        "Ceiling as a multiple of the slots, instead of maxWait.",
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
        "Ceiling as a number of requests for the whole pool, instead of maxWait.",
        unit="requests",
        targets=FieldTargets(
            live=Xds.RTDS | Xds.RDS,
            istio=approximated(
                "http2MaxRequests, shared by --proxies; each proxy has its own; nobody divides it by "
                "what they ask",
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
