"""How long a request may take; streaming and non-streaming apart."""

from typing import Final

from policies.document import Spec, documented_field
from policies.fidelity import approximated, kept, lost
from policies.field_targets import FieldTargets, Xds
from policies.quantity import Duration

_GATEWAY_TOTAL: Final = approximated(
    "rules[].timeouts.request; the longer of the two totals, unless the route asks for streams or not",
    "HTTPRoute",
)


class StreamTimeouts(Spec):
    """Limits on streaming requests. Off at 0s; derived from measured tails, or off, when absent."""

    first_token: Duration | None = documented_field(
        None,
        "Longest wait for the first token before the request is tried elsewhere.",
        why="absent: the allowed wait plus three times the longest first byte lately, behind the first-token "
        "gate; off where nothing is measured, as it must exceed allowed wait plus longest prefill",
        unit="duration",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=approximated(
                "perTryTimeout, or per_try_idle_timeout of the route; only streams that say so by a "
                "header have it",
                "VirtualService",
            ),
            gateway_api=lost("there is no limit on the first byte of an answer"),
        ),
        le=86400,
    )
    between_tokens: Duration | None = documented_field(
        30.0,
        "Longest silence inside a stream before it is cut; raised where firstToken or hedging.delay need longer.",
        why="no healthy stream was seen to pause this long; without the first-token gate the wait in the engine's "
        "queue counts as silence too, so keep it above allowed wait plus longest prefill",
        unit="duration",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=approximated(
                "per_try_idle_timeout, or idle_timeout of the route; only streams that say so by a header have it",
                "EnvoyFilter",
            ),
            gateway_api=approximated(
                "timeout.http.streamIdleTimeout, of every request of the route", "BackendTrafficPolicy"
            ),
        ),
        le=86400,
    )
    total: Duration = documented_field(
        900.0,
        "Longest a stream may last.",
        unit="duration",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=approximated("timeout; only streams that say so by a header have it", "VirtualService"),
            gateway_api=_GATEWAY_TOTAL,
        ),
        le=86400,
    )


class UnaryTimeouts(Spec):
    """Limits on non-streaming requests. Nothing arrives before the whole answer exists."""

    per_try: Duration | None = documented_field(
        None,
        "Longest one try may take before the request is tried elsewhere.",
        why="absent: the allowed wait plus one and a half times the longest answer lately; off where nothing is "
        "measured, as below allowed wait plus longest service it turned 86 % goodput into 62 %",
        unit="duration",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=kept("retries.perTryTimeout", "VirtualService"),
            gateway_api=approximated(
                "rules[].timeouts.backendRequest, only where the route asks for requests that do not stream",
                "HTTPRoute",
            ),
        ),
        le=86400,
    )
    total: Duration = documented_field(
        300.0,
        "Longest a request may take, all tries together.",
        unit="duration",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=approximated(
                "timeout; the longer of both totals where streams that nobody marked may come", "VirtualService"
            ),
            gateway_api=_GATEWAY_TOTAL,
        ),
        le=86400,
    )


class Timeouts(Spec):
    """Time limits; streaming and non-streaming apart, because only a stream shows progress."""

    adaptive: bool = documented_field(
        True,
        "Whether limits that are not given follow the measured tail of healthy requests.",
        why="a limit below allowed wait plus longest service kills work that would have succeeded; nobody knows "
        "that sum at design time",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=lost("limits stay as they are written; none follows what is measured"),
            gateway_api=lost("nothing is measured; only limits that are given are exported"),
        ),
    )

    connect: Duration = documented_field(
        0.25,
        "Longest wait for a TCP connection.",
        why="0.25 s found a black hole in 0.34 s",
        unit="duration",
        targets=FieldTargets(
            live=Xds.CDS,
            istio=kept("connectionPool.tcp.connectTimeout", "DestinationRule"),
            gateway_api=kept("timeout.tcp.connectTimeout", "BackendTrafficPolicy"),
        ),
        gt=0,
        le=60,
    )
    handshake: Duration = documented_field(
        1.0,
        "Added to connect for engines that speak TLS: longest TLS handshake.",
        why="Envoy has one limit for both: with 250 ms all of 16 connections failed at a handshake of 300 ms",
        unit="duration",
        targets=FieldTargets(
            live=Xds.CDS,
            istio=lost("connectTimeout is of TCP alone, or of both, as Istio sets up its mTLS; raise connect"),
            gateway_api=lost("connectTimeout covers both; raise connect"),
        ),
        ge=0,
        le=60,
    )
    streaming: StreamTimeouts = documented_field(StreamTimeouts, "Streaming requests.")
    non_streaming: UnaryTimeouts = documented_field(UnaryTimeouts, "Non-streaming requests.")

    def connection_s(self, *, tls: bool) -> float:
        """Longest wait until a connection can carry requests."""
        return self.connect + (self.handshake if tls else 0.0)
