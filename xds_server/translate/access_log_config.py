"""Access log configuration of Envoy: one entry per attempt, plus entries that only the listener sees.

Attempts are logged by the router when they end; the listener's log knows only the last one. A refusal at the
admission limit is also an attempt, without an engine. The router misses requests without an attempt (no engine
available, pool in maintenance, share shed by the endpoints), and does not show that a *route* timeout ended an
attempt. The listener adds those two.

Both loggers have identical configuration, byte for byte, so that Envoy sends both over one stream per worker.
Both use the same runtime key, so that the control plane can lower the sampling ratio without changing a listener.
Only tenants of a listener and prefill engines of its routes change its entries: the header that names them; for
tenants also the port, and the tokens of a request.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from envoy_data_plane.envoy.config.accesslog.v3 import (
    AccessLog,
    AccessLogFilter,
    AndFilter,
    ComparisonFilter,
    ComparisonFilterOp,
    HeaderFilter,
    MetadataFilter,
    OrFilter,
    ResponseFlagFilter,
    RuntimeFilter,
    StatusCodeFilter,
)
from envoy_data_plane.envoy.config.core.v3 import (
    ApiVersion,
    GrpcService,
    GrpcServiceEnvoyGrpc,
    RuntimeUInt32,
    SubstitutionFormatString,
    TypedExtensionConfig,
)
from envoy_data_plane.envoy.config.route.v3 import HeaderMatcher
from envoy_data_plane.envoy.extensions.access_loggers.file.v3 import FileAccessLog
from envoy_data_plane.envoy.extensions.access_loggers.grpc.v3 import (
    CommonGrpcAccessLogConfig,
    HttpGrpcAccessLogConfig,
)
from envoy_data_plane.envoy.extensions.access_loggers.open_telemetry.v3 import OpenTelemetryAccessLogConfig
from envoy_data_plane.envoy.extensions.access_loggers.stream.v3 import StderrAccessLog, StdoutAccessLog
from envoy_data_plane.envoy.extensions.formatter.req_without_query.v3 import ReqWithoutQuery
from envoy_data_plane.envoy.type.matcher.v3 import MetadataMatcher, MetadataMatcherPathSegment, ValueMatcher
from envoy_data_plane.envoy.type.tracing.v3 import CustomTag, CustomTagLiteral
from envoy_data_plane.envoy.type.v3 import FractionalPercent, FractionalPercentDenominatorType
from envoy_data_plane.google.protobuf import Struct, Value
from envoy_data_plane.opentelemetry.proto.common.v1 import AnyValue, KeyValue, KeyValueList

from policies.deadline import Deadline
from policies.listener import AccessLog as AccessLogTarget
from policies.listener import Listener
from policies.route import MAX_TOKENS_HEADER, MODEL_HEADER
from xds_server.translate.envoy_values import pack_any, seconds
from xds_server.translate.external_clusters import external_cluster_name
from xds_server.translate.lua_scripts import STATIC_ANSWER_KEY, STATIC_ANSWER_METADATA
from xds_server.translate.prefillers import PREFILLER_HEADER
from xds_server.translate.request_fields import ESTIMATED_TOKENS_HEADER, REQUEST_METADATA
from xds_server.translate.tenant_quotas import OVER_QUOTA_HEADER, QUOTA_FLAG
from xds_server.translate.tenant_share_limits import SHARE_FLAG

SERVER_CLUSTER: Final = "switchgear"
"""Cluster of the control plane, static in every bootstrap."""

LOG_NAME: Final = "switchgear"

SAMPLING_KEY: Final = "switchgear.access_log.percent"
"""Runtime key: percentage of reported calls, a whole number; default 100."""

ATTEMPT_HEADER: Final = "x-envoy-attempt-count"
"""Attempt number within its request; Envoy leaves its own field empty in the router's log."""

PORT_TAG: Final = "port"
"""Tag of entries with the port of a listener with tenants."""

FLUSH_S: Final = 0.1
"""Maximum delay of entries in Envoy; a lower bound for the breaker's reaction time."""

BUFFER_BYTES: Final = 16 * 1024
"""Envoy's default, about thirty entries; set because it determines the message size."""

OPERATOR_LOG_FIELDS: Final = {
    "time": "%START_TIME%",
    "request_id": "%REQ(x-request-id)%",
    "caller": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
    "peer": "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%",
    "user_agent": "%REQ(user-agent)%",
    "protocol": "%PROTOCOL%",
    "method": "%REQ(:method)%",
    "host": "%REQ(:authority)%",
    "path": "%REQ_WITHOUT_QUERY(:path)%",
    "model": f"%DYNAMIC_METADATA({REQUEST_METADATA}:model)%",
    "route": "%ROUTE_NAME%",
    "pool": "%UPSTREAM_CLUSTER%",
    "engine": "%UPSTREAM_HOST%",
    "attempts": f"%REQ({ATTEMPT_HEADER})%",
    "status": "%RESPONSE_CODE%",
    "reason": "%RESP(x-switchgear-reason)%",
    "flags": "%RESPONSE_FLAGS%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "request_bytes": "%BYTES_RECEIVED%",
    "response_bytes": "%BYTES_SENT%",
    "first_byte_ms": "%RESPONSE_DURATION%",
    "duration_ms": "%DURATION%",
}
"""Fields of the operator's log, and Envoy's operators for them."""


def attempt_log(spec: Listener, *, prefill: bool = False) -> AccessLog:
    """One entry per attempt, for ``Router.upstream_log``. ``prefill``: routes name prefill engines."""
    return _logger(_sampled(), spec, prefill=prefill)


def got_static_answer() -> AccessLogFilter:
    """Requests that got the static answer of their route, whatever its status."""
    return AccessLogFilter(
        metadata_filter=MetadataFilter(
            matcher=MetadataMatcher(
                filter=STATIC_ANSWER_METADATA,
                path=[MetadataMatcherPathSegment(key=STATIC_ANSWER_KEY)],
                value=ValueMatcher(bool_match=True),
            ),
            # Envoy's default is to match requests without the key.
            match_if_key_not_found=False,
        )
    )


def listener_log(spec: Listener, *, static_answers: bool = False, prefill: bool = False) -> AccessLog:
    """One entry per request refused without an attempt or by a quota, or ended by the route timeout.

    With ``static_answers`` also those that got one: for the pool they are demand that it could not serve.
    """
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
    # A deadline that expired has no flag.
    expired = () if spec.deadline is None else (_expired(spec.deadline),)
    # No engine available, and timeouts. Per-try timeouts match, too: only response details distinguish them.
    flags = ["UH", "UT", "SI", *([] if spec.tenants is None else [QUOTA_FLAG])]
    if spec.tenants is not None and spec.tenants.fair_shares:
        flags.append(SHARE_FLAG)
    flagged = AccessLogFilter(response_flag_filter=ResponseFlagFilter(flags=flags))
    static = [got_static_answer()] if static_answers else []
    wanted = AccessLogFilter(or_filter=OrFilter(filters=[refused, flagged, *static, *expired]))
    return _logger(AccessLogFilter(and_filter=AndFilter(filters=[wanted, _sampled()])), spec, prefill=prefill)


def _expired(deadline: Deadline) -> AccessLogFilter:
    """Requests with a deadline that got no answer in time."""
    timed_out = AccessLogFilter(
        status_code_filter=StatusCodeFilter(
            comparison=ComparisonFilter(
                op=ComparisonFilterOp.EQ,
                value=RuntimeUInt32(default_value=504, runtime_key="switchgear.access_log.expired_status"),
            )
        )
    )
    stated = AccessLogFilter(
        header_filter=HeaderFilter(header=HeaderMatcher(name=deadline.header, present_match=True))
    )
    return AccessLogFilter(and_filter=AndFilter(filters=[timed_out, stated]))


def operator_log(spec: Listener) -> Iterator[AccessLog]:
    """The operator's logs of requests: one record each, without bodies, queries and credentials."""
    formatter = TypedExtensionConfig(
        name="envoy.formatter.req_without_query", typed_config=pack_any(ReqWithoutQuery())
    )
    fields = _log_fields(spec)
    line = SubstitutionFormatString(
        json_format=Struct(fields={key: Value(string_value=value) for key, value in fields.items()}),
        formatters=[formatter],
    )
    if spec.access_log is AccessLogTarget.STDOUT:
        yield AccessLog(
            name="envoy.access_loggers.stdout", typed_config=pack_any(StdoutAccessLog(log_format=line))
        )
    if spec.access_log is AccessLogTarget.STDERR:
        yield AccessLog(
            name="envoy.access_loggers.stderr", typed_config=pack_any(StderrAccessLog(log_format=line))
        )
    if spec.access_log_file is not None:
        yield AccessLog(
            name="envoy.access_loggers.file",
            typed_config=pack_any(FileAccessLog(path=spec.access_log_file, log_format=line)),
        )
    if spec.access_log_collector is not None:
        yield _otlp_logger(external_cluster_name(spec.port, "accessLogCollector"), formatter, fields)


def _log_fields(spec: Listener) -> Mapping[str, str]:
    return (
        {**OPERATOR_LOG_FIELDS, "model": f"%REQ({MODEL_HEADER})%"} if spec.reads_headers else OPERATOR_LOG_FIELDS
    )


def _otlp_logger(cluster: str, formatter: TypedExtensionConfig, logged: Mapping[str, str]) -> AccessLog:
    fields = [
        KeyValue(key=key, value=AnyValue(string_value=value))
        for key, value in logged.items()
        if key != "time"  # every record has its time
    ]
    return AccessLog(
        name="envoy.access_loggers.open_telemetry",
        typed_config=pack_any(
            OpenTelemetryAccessLogConfig(
                log_name=LOG_NAME,
                grpc_service=GrpcService(envoy_grpc=GrpcServiceEnvoyGrpc(cluster_name=cluster)),
                resource_attributes=KeyValueList(
                    values=[KeyValue(key="service.name", value=AnyValue(string_value=LOG_NAME))]
                ),
                body=AnyValue(string_value="%REQ(:method)% %REQ_WITHOUT_QUERY(:path)% %RESPONSE_CODE%"),
                attributes=KeyValueList(values=fields),
                formatters=[formatter],
            )
        ),
    )


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


def _logger(only: AccessLogFilter, spec: Listener, *, prefill: bool) -> AccessLog:
    tenants = spec.tenants
    # A request that a quota refuses has no route yet: the body is not read.
    port = CustomTag(tag=PORT_TAG, literal=CustomTagLiteral(value=str(spec.port)))
    logged = [] if tenants is None else [tenants.header, OVER_QUOTA_HEADER]
    if tenants is not None and tenants.counts_tokens:
        # Not from the metadata: entries of attempts have none.
        logged.append(MAX_TOKENS_HEADER if spec.reads_headers else ESTIMATED_TOKENS_HEADER)
    if prefill:
        # The tries of a request share its headers, so the entry of a try has what was drawn for it.
        logged.append(PREFILLER_HEADER)
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
                    custom_tags=[] if tenants is None else [port],
                ),
                additional_request_headers_to_log=[
                    ATTEMPT_HEADER,
                    *logged,
                ],
            )
        ),
    )
