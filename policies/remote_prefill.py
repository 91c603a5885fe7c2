"""Prefill on engines of another pool: the stage of a pool, and the pool that prefills for a route."""

from enum import StrEnum

from policies.document import Spec, documented_field
from policies.fidelity import lost
from policies.field_targets import FieldTargets, Xds
from policies.quantity import Name


class Stage(StrEnum):
    """The part of a request that the engines of a pool run."""

    PREFILL = "prefill"
    DECODE = "decode"


class RemotePrefill(Spec):
    """The pool that prefills the requests of a route, and for how many of them."""

    pool: Name = documented_field(
        ...,
        "Pool of the prefill engines; it has `stage: prefill` and the model of the decode pool.",
        targets=FieldTargets(
            live=Xds.EDS | Xds.RDS,
            istio=lost("Istio's proxies name no prefill engine: decode engines prefill themselves"),
            gateway_api=lost("gateways name no prefill engine: decode engines prefill themselves"),
        ),
    )
    percent: float = documented_field(
        100,
        "Share of requests for which Envoy names a prefill engine; decode engines prefill the others themselves. "
        "0 turns it off.",
        unit="%",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=lost("Istio's proxies name no prefill engine"),
            gateway_api=lost("gateways name no prefill engine"),
        ),
        ge=0,
        le=100,
    )
    tokens_above: int | None = documented_field(
        None,
        "Name a prefill engine only to requests of more tokens by the size of the body (bytes / 4). The decode "
        "engine prefills shorter ones, without a transfer. Requests of unknown size count as long.",
        unit="tokens",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=lost("Istio's proxies name no prefill engine"),
            gateway_api=lost("gateways name no prefill engine"),
        ),
        ge=1,
        le=10_000_000,
    )
    while_faster: bool = documented_field(
        False,
        "Name prefill engines to most requests only while that is quicker to the first token than local prefill. "
        "The pool needs `firstTokenGate`. One request in twenty goes the other way, for comparison.",
        targets=FieldTargets(
            live=Xds.EDS,
            istio=lost("Istio's proxies name no prefill engine"),
            gateway_api=lost("gateways name no prefill engine"),
        ),
    )
