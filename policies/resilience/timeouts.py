"""Timeouts of streaming and non-streaming requests."""

from typing import Final

from policies.document import Spec, documented_field
from policies.fidelity import approximated, kept, lost
from policies.field_targets import FieldTargets, Xds, exported_alike
from policies.quantity import Duration

_GATEWAY_TOTAL: Final = approximated(
    "rules[].timeouts.request; the longer of the two totals, unless the route matches on streaming",
    "HTTPRoute",
)


class StreamTimeouts(Spec):
    """Limits on streaming requests. Off at 0s; derived from measured tails, or off, when absent."""

    first_token: Duration | None = documented_field(
        None,
        "Longest wait for the first token before the request is retried.",
        why="absent: allowed wait plus three times the longest recent first byte, behind the first-token gate; "
        "off "
        "without measurements, as it must exceed allowed wait plus longest prefill",
        unit="duration",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=approximated(
                "perTryTimeout, or per_try_idle_timeout of the route; only streams marked by a header",
                "VirtualService",
            ),
            gateway_api=lost("Envoy Gateway has no limit on the first byte"),
        ),
        le=86400,
    )
    between_tokens: Duration | None = documented_field(
        30.0,
        "Longest silence inside a stream before it is cut; raised where firstToken or hedging.delay need longer, "
        "and the default to longestServiceTime of the pool, where proxies cut requests of hung engines.",
        why="no healthy stream paused this long; without the first-token gate the wait in the engine's queue "
        "counts "
        "as silence too, so keep it above allowed wait plus longest prefill",
        unit="duration",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=approximated(
                "per_try_idle_timeout, or idle_timeout of the route; only streams marked by a header",
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
        "Longest duration of a stream.",
        unit="duration",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=approximated("timeout; only streams marked by a header", "VirtualService"),
            gateway_api=_GATEWAY_TOTAL,
        ),
        le=86400,
    )


_NO_TOKENS: Final = lost("nothing there estimates tokens; perTry and total apply to requests of any size")


class TokenTimeouts(Spec):
    """Limit on a try by what the request asks for: allowed wait plus its estimated tokens times ``perToken``.

    Only for requests that state a limit of tokens. It replaces ``perTry``; ``total`` stays the longest.
    """

    enabled: bool = documented_field(
        False,
        "Limit each try, and all tries together, by the estimated tokens of the request.",
        why="one limit for all lengths must allow the longest answer, so a hung engine holds a short request as "
        "long",
        targets=exported_alike(Xds.RDS | Xds.LDS, _NO_TOKENS),
    )
    per_token: Duration | None = documented_field(
        None,
        "Time for each estimated token; derived from the times between tokens that engines report when absent.",
        why="derived: the longer of three times the median and the 99th percentile, of the engine in the middle; "
        "no limit by tokens without reports of agents",
        unit="duration",
        targets=exported_alike(Xds.RDS, _NO_TOKENS),
        gt=0,
        le=60,
    )
    min: Duration = documented_field(
        10.0,
        "Shortest limit of a try.",
        why="short requests wait for the same prefills as long ones",
        unit="duration",
        targets=exported_alike(Xds.RDS, _NO_TOKENS),
        gt=0,
        le=86400,
    )


class UnaryTimeouts(Spec):
    """Limits on non-streaming requests, which send nothing before the whole answer exists."""

    per_try: Duration | None = documented_field(
        None,
        "Longest duration of one try before the request is retried.",
        why="absent: allowed wait plus 1.5 times the longest recent answer; off without measurements: below "
        "allowed "
        "wait plus longest service it lowered goodput from 86 % to 62 %",
        unit="duration",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=kept("retries.perTryTimeout", "VirtualService"),
            gateway_api=approximated(
                "rules[].timeouts.backendRequest, or perRetry.timeout of a BackendTrafficPolicy that retries; "
                "only where the route matches non-streaming requests",
                "HTTPRoute",
            ),
        ),
        le=86400,
    )
    total: Duration = documented_field(
        300.0,
        "Longest duration of a request with all tries.",
        unit="duration",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=approximated(
                "timeout; the longer of both totals where unmarked streams are possible", "VirtualService"
            ),
            gateway_api=_GATEWAY_TOTAL,
        ),
        le=86400,
    )
    by_tokens: TokenTimeouts = documented_field(TokenTimeouts, "Limits by the size of the request.")


class Timeouts(Spec):
    """Timeouts, separate for streaming and non-streaming requests: only a stream shows progress."""

    adaptive: bool = documented_field(
        True,
        "Derive absent limits from the measured tail of healthy requests.",
        why="a limit below allowed wait plus longest service aborts healthy work, and that sum is unknown at "
        "design "
        "time",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=lost("limits stay as written; none follows measurements"),
            gateway_api=lost("nothing is measured; only written limits are exported"),
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
