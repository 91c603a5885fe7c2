"""What every Envoy tells the control plane of its calls: one entry per attempt, and the few its listener must add.

Attempts are logged where they end, by the router, because the log of the listener knows only the last of them. A
refusal at the admission ceiling is such an attempt too, one that reached nobody. What the router does not log are
requests that never became an attempt (no engine to choose, a pool in maintenance, a share shed by the
endpoints), and it does not say of an attempt that a time limit of the *route* ended it. Those two the
listener adds.

Both loggers have the same configuration, byte for byte, so that Envoy sends both over one stream per worker. Both
stand behind the same runtime key: the control plane lowers the share of calls it is told of without touching a
listener. Nothing in here follows a policy.
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
"""The cluster of the control plane, static in every bootstrap of ours."""

LOG_NAME: Final = "switchgear"

SAMPLING_KEY: Final = "switchgear.access_log.percent"
"""Runtime key: percentage of calls that are told of. Whole numbers; 100 where nothing is said."""

ATTEMPT_HEADER: Final = "x-envoy-attempt-count"
"""Which attempt of its request it is; Envoy leaves its own field for that empty in the router's log."""

FLUSH_S: Final = 0.1
"""Entries wait at most this long in Envoy; a breaker cannot be faster than what it is told."""

BUFFER_BYTES: Final = 16 * 1024
"""Envoy's own default, some thirty entries; said here because a message is about as large."""


def attempt_log() -> AccessLog:
    """One entry per attempt, for ``Router.upstream_log``."""
    return _logger(_sampled())


def listener_log() -> AccessLog:
    """One entry per request that was refused before it became an attempt, or that the route's time limit ended."""
    unavailable = AccessLogFilter(
        status_code_filter=StatusCodeFilter(
            comparison=ComparisonFilter(
                op=ComparisonFilterOp.EQ,
                value=RuntimeUInt32(default_value=503, runtime_key="switchgear.access_log.refused_status"),
            )
        )
    )
    # The router writes this header into the request when it looks for an engine.
    never_tried = AccessLogFilter(
        header_filter=HeaderFilter(
            header=HeaderMatcher(name=ATTEMPT_HEADER, present_match=True, invert_match=True)
        )
    )
    refused = AccessLogFilter(and_filter=AndFilter(filters=[unavailable, never_tried]))
    # No engine to choose, and the time limits: those of a try come too, because only details tell them apart.
    flagged = AccessLogFilter(response_flag_filter=ResponseFlagFilter(flags=["UH", "UT", "SI"]))
    wanted = AccessLogFilter(or_filter=OrFilter(filters=[refused, flagged]))
    return _logger(AccessLogFilter(and_filter=AndFilter(filters=[wanted, _sampled()])))


def _sampled() -> AccessLogFilter:
    return AccessLogFilter(
        runtime_filter=RuntimeFilter(
            runtime_key=SAMPLING_KEY,
            percent_sampled=FractionalPercent(numerator=100, denominator=FractionalPercentDenominatorType.HUNDRED),
            # By request id every attempt of a request, or none, would be told; each attempt is a fact of its own.
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
