"""Access log configuration of Envoy: one entry per attempt, plus entries that only the listener sees.

Attempts are logged by the router when they end; the listener's log knows only the last one. A refusal at the
admission limit is also an attempt, without an engine. The router misses requests without an attempt (no engine
available, pool in maintenance, share shed by the endpoints), and does not show that a *route* timeout ended an
attempt. The listener adds those two.

Both loggers have identical configuration, byte for byte, so that Envoy sends both over one stream per worker.
Both use the same runtime key, so that the control plane can lower the sampling ratio without changing a listener.
Nothing here depends on a policy.
"""

from typing import Final

from envoy_data_plane.envoy.config.accesslog.v3 import (
    AccessLog,
    AccessLogFilter,
    AndFilter,
    ComparisonFilter,
    ComparisonFilterOp,
    HeaderFilter,
    OrFilter,
    ResponseFlagFilter,
    RuntimeFilter,
    StatusCodeFilter,
)
from envoy_data_plane.envoy.config.core.v3 import ApiVersion, GrpcService, GrpcServiceEnvoyGrpc, RuntimeUInt32
from envoy_data_plane.envoy.config.route.v3 import HeaderMatcher
from envoy_data_plane.envoy.extensions.access_loggers.grpc.v3 import (
    CommonGrpcAccessLogConfig,
    HttpGrpcAccessLogConfig,
)
from envoy_data_plane.envoy.type.v3 import FractionalPercent, FractionalPercentDenominatorType

from xds_server.translate.envoy_values import pack_any, seconds

SERVER_CLUSTER: Final = "switchgear"
"""Cluster of the control plane, static in every bootstrap."""

LOG_NAME: Final = "switchgear"

SAMPLING_KEY: Final = "switchgear.access_log.percent"
"""Runtime key: percentage of reported calls, a whole number; default 100."""

ATTEMPT_HEADER: Final = "x-envoy-attempt-count"
"""Attempt number within its request; Envoy leaves its own field empty in the router's log."""

FLUSH_S: Final = 0.1
"""Maximum delay of entries in Envoy; a lower bound for the breaker's reaction time."""

BUFFER_BYTES: Final = 16 * 1024
"""Envoy's default, about thirty entries; set because it determines the message size."""


def attempt_log() -> AccessLog:
    """One entry per attempt, for ``Router.upstream_log``."""
    return _logger(_sampled())


def listener_log() -> AccessLog:
    """One entry per request refused without an attempt, or ended by the route timeout."""
    unavailable = AccessLogFilter(
        status_code_filter=StatusCodeFilter(
            comparison=ComparisonFilter(
                op=ComparisonFilterOp.EQ,
                value=RuntimeUInt32(default_value=503, runtime_key="switchgear.access_log.refused_status"),
            )
        )
    )
    # The router adds this header when it selects an engine.
    never_tried = AccessLogFilter(
        header_filter=HeaderFilter(
            header=HeaderMatcher(name=ATTEMPT_HEADER, present_match=True, invert_match=True)
        )
    )
    refused = AccessLogFilter(and_filter=AndFilter(filters=[unavailable, never_tried]))
    # No engine available, and timeouts. Per-try timeouts match, too: only response details distinguish them.
    flagged = AccessLogFilter(response_flag_filter=ResponseFlagFilter(flags=["UH", "UT", "SI"]))
    wanted = AccessLogFilter(or_filter=OrFilter(filters=[refused, flagged]))
    return _logger(AccessLogFilter(and_filter=AndFilter(filters=[wanted, _sampled()])))


def _sampled() -> AccessLogFilter:
    return AccessLogFilter(
        runtime_filter=RuntimeFilter(
            runtime_key=SAMPLING_KEY,
            percent_sampled=FractionalPercent(numerator=100, denominator=FractionalPercentDenominatorType.HUNDRED),
            # Sampling by request id would report all or no attempts of a request; attempts are sampled
            # independently.
            use_independent_randomness=True,
        )
    )


def _logger(only: AccessLogFilter) -> AccessLog:
    return AccessLog(
        name="envoy.access_loggers.http_grpc",
        filter=only,
        typed_config=pack_any(
            HttpGrpcAccessLogConfig(
                common_config=CommonGrpcAccessLogConfig(
                    log_name=LOG_NAME,
                    grpc_service=GrpcService(envoy_grpc=GrpcServiceEnvoyGrpc(cluster_name=SERVER_CLUSTER)),
                    transport_api_version=ApiVersion.V3,
                    buffer_flush_interval=seconds(FLUSH_S),
                    buffer_size_bytes=BUFFER_BYTES,
                ),
                additional_request_headers_to_log=[ATTEMPT_HEADER],
            )
        ),
    )
