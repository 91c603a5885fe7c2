"""Listeners: one per port, with bytes that never change.

Any changed byte of a listener cuts its streams when Envoy's drain time ends. So a listener contains only what all
policies need (reading model, ``stream`` and token limit from bodies, local replies with reasons, logs of requests
without attempt). Everything that operators edit is in the routes.
"""

from collections.abc import Iterator
from typing import Final

from envoy_data_plane.envoy.config.accesslog.v3 import (
    AccessLogFilter,
    AndFilter,
    ComparisonFilter,
    ComparisonFilterOp,
    ResponseFlagFilter,
    StatusCodeFilter,
)
from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation as MutationRule
from envoy_data_plane.envoy.config.common.mutation_rules.v3 import (
    HeaderMutationRemoveOnMatch as MutationRuleRemoveOnMatch,
)
from envoy_data_plane.envoy.config.core.v3 import (
    Address,
    CidrRange,
    DataSource,
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
    Http2ProtocolOptions,
    HttpProtocolOptions,
    HttpProtocolOptionsHeadersWithUnderscoresAction,
    RuntimeUInt32,
    SocketAddress,
    SubstitutionFormatString,
    TypedExtensionConfig,
)
from envoy_data_plane.envoy.config.listener.v3 import Filter, FilterChain, Listener
from envoy_data_plane.envoy.extensions.filters.http.router.v3 import Router
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpConnectionManagerInternalAddressConfig,
    HttpConnectionManagerPathWithEscapedSlashesAction,
    HttpFilter,
    LocalReplyConfig,
    Rds,
    ResponseMapper,
)
from envoy_data_plane.envoy.extensions.http.early_header_mutation.header_mutation.v3 import HeaderMutation
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher
from envoy_data_plane.google.protobuf import Any, Struct, Value

from policies.listener import CallerNameKind, ListenerTls, RequestId
from policies.listener import Listener as ListenerSpec
from policies.route import ENVOYS_HEADERS, STATED_HEADERS
from xds_server.translate.access_log_config import attempt_log, got_static_answer, listener_log, operator_log
from xds_server.translate.caller_auth_filters import (
    EXT_AUTH_FLAG,
    EXT_AUTH_UNAVAILABLE,
    caller_auth_filters,
)
from xds_server.translate.deadlines import deadline_mutations
from xds_server.translate.envoy_values import ads_config_source, pack_any, seconds
from xds_server.translate.lua_scripts import LUA_FILTER, fields_filter, lua_filter
from xds_server.translate.prompt_prefix import PREFIX_FILTER, prefix_state_filter
from xds_server.translate.request_fields import ESTIMATED_TOKENS_HEADER, FIELDS_FILTER, TokenEstimate
from xds_server.translate.route_configuration import route_configuration_name
from xds_server.translate.strict_sessions import session_filters
from xds_server.translate.tenant_quotas import OVER_QUOTA_HEADER, QUOTA_REASON, quota_filters
from xds_server.translate.tenant_share_limits import (
    SHARE_FLAG,
    SHARE_REASON,
    SHARE_RETRY_AFTER_S,
    share_filters,
)
from xds_server.translate.upstream_tls import downstream_tls_socket

REASON_HEADER: Final = "x-switchgear-reason"

LOCAL_REPLY_REASONS: Final = (
    # Envoy's response flag, our reason, Retry-After in seconds.
    ("UO", "overload", "1"),
    ("UH", "no-engine", "1"),
    ("NC", "no-pool", "1"),
    ("UF", "connect-failure", None),
    ("UC", "engine-reset", None),
    ("OM", "proxy-overload", "1"),
)
"""Reasons of Envoy's local replies. UO: the admission limit is reached; the engines never saw the request. OM:
Envoy is short of memory.

``docs/answers.md`` describes these, and the refusals of routes, for callers.
"""

LOCAL_REPLY_STATUSES: Final = (
    # By status: these replies have no response flag.
    (504, "timeout"),
    (408, "receive-timeout"),
    (413, "body-too-large"),
    (431, "headers-too-large"),
)
"""Reasons of Envoy's other local replies."""

INVALID_TOKEN_REASON: Final = "invalid-token"  # noqa: S105 -- a reason
NOT_AUTHORIZED_REASON: Final = "not-authorized"
NO_AUTHORIZATION_REASON: Final = "authorization-unavailable"
NO_AUTHORIZATION_RETRY_AFTER: Final = "1"

BAD_REQUEST_REASON: Final = "bad-request"
"""Reason of a local 400 that has no other: the request breaks HTTP, or its path cannot be normalized."""

_IDENTITIES: Final = {
    CallerNameKind.URI: "%DOWNSTREAM_PEER_URI_SAN%",
    CallerNameKind.DNS: "%DOWNSTREAM_PEER_DNS_SAN%",
}

REQUEST_HEADERS_TIMEOUT_S: Final = 30.0

MAX_CONCURRENT_STREAMS: Final = 100
CONNECTION_WINDOW_BYTES: Final = 1024 * 1024
"""HTTP/2 limits of a caller's connection. Source: Envoy docs, "Configuring Envoy as an edge proxy"."""

STREAM_WINDOW_BYTES: Final = 256 * 1024
"""The guide's 64 KiB would let a body of 16 MB take 64 s from a caller 250 ms away."""

ANY_IPV6: Final = "::"

UNUSED_ADDRESS: Final = "255.255.255.255"
"""An address without requests. Without any range Envoy treats all private addresses as internal."""


def listener_name(port: int) -> str:
    """Name of the listener on this port."""
    return f"port-{port}"


def connection_manager(
    spec: ListenerSpec,
    prefix_lengths: tuple[int, ...] = (),
    estimate: TokenEstimate | None = None,
    *,
    static_answers: bool = False,
    keeps_sessions: bool = False,
    prefill: bool = False,
) -> Any:
    """Packed connection manager of a port's listener; the same at every address.

    ``prefix_lengths``: of the begin of prompts that routes of the port have affinity by. ``estimate``: of tokens,
    if something needs it. ``static_answers``: a route of the port has one. ``keeps_sessions``: some have strict
    affinity. ``prefill``: some name prefill engines.
    """
    tries = attempt_log(spec, prefill=prefill)
    manager = HttpConnectionManager(
        stat_prefix=listener_name(spec.port),
        rds=Rds(config_source=ads_config_source(), route_config_name=route_configuration_name(spec)),
        http_filters=[
            *caller_auth_filters(spec),
            *_fields_and_quotas(spec, prefix_lengths, estimate),
            *share_filters(spec.tenants),
            HttpFilter(name=LUA_FILTER, typed_config=lua_filter(static_answers=static_answers)),
            *(session_filters() if keeps_sessions else ()),
            HttpFilter(name="envoy.filters.http.router", typed_config=pack_any(Router(upstream_log=[tries]))),
        ],
        access_log=[
            listener_log(spec, static_answers=static_answers, prefill=prefill),
            *operator_log(spec),
        ],
        # All stream timeouts are in the routes; Envoy's defaults would cut healthy generations.
        stream_idle_timeout=seconds(0),
        request_timeout=seconds(spec.receive_timeout),
        request_headers_timeout=seconds(REQUEST_HEADERS_TIMEOUT_S),
        server_name="switchgear",
        common_http_protocol_options=HttpProtocolOptions(
            # Servers that treat "_" as "-" would accept x_envoy_... for a header that the listener removes.
            # Rejecting such requests would refuse usual clients: some send session_id.
            headers_with_underscores_action=HttpProtocolOptionsHeadersWithUnderscoresAction.DROP_HEADER
        ),
        http2_protocol_options=Http2ProtocolOptions(
            max_concurrent_streams=MAX_CONCURRENT_STREAMS,
            initial_stream_window_size=STREAM_WINDOW_BYTES,
            initial_connection_window_size=CONNECTION_WINDOW_BYTES,
        ),
        normalize_path=True,
        merge_slashes=True,
        # Engines decode %2F, so routes must match the decoded path.
        path_with_escaped_slashes_action=HttpConnectionManagerPathWithEscapedSlashesAction.UNESCAPE_AND_FORWARD,
        # No caller is internal: x-envoy-* request headers could otherwise change retries and timeouts. A caller's
        # x-request-id is not trusted, either: Envoy creates its own, used in logs and engines.
        use_remote_address=True,
        xff_num_trusted_hops=spec.trusted_hops,
        preserve_external_request_id=spec.request_id is RequestId.KEEP,
        internal_address_config=HttpConnectionManagerInternalAddressConfig(
            unix_sockets=False, cidr_ranges=[CidrRange(address_prefix=UNUSED_ADDRESS, prefix_len=32)]
        ),
        # Headers that Envoy itself leaves: a caller's attempt count would hide its refusals from our log, and
        # engines trust headers with these names.
        early_header_mutation_extensions=[
            TypedExtensionConfig(
                name="envoy.http.early_header_mutation.header_mutation",
                typed_config=pack_any(_removed_headers(spec, estimates=estimate is not None)),
            )
        ],
        # Also in refusals, so that callers can name the refused request.
        always_set_request_id_in_response=True,
        local_reply_config=_local_replies(spec, static_answers=static_answers),
    )
    return pack_any(manager)


def listener(
    port: int, address: str, manager: Any, *, tls: ListenerTls | None = None, buffer_bytes: int | None = None
) -> Listener:
    """Listener on ``address``:``port`` with the port's ``connection_manager``; ``tls``: default, plain text.

    ``buffer_bytes``: what a connection may buffer, if not Envoy's 1 MiB.
    """
    return Listener(
        name=listener_name(port),
        # `::` alone accepts IPv6 only: Envoy ignores the system's default.
        address=Address(
            socket_address=SocketAddress(address=address, port_value=port, ipv4_compat=address == ANY_IPV6)
        ),
        filter_chains=[
            FilterChain(
                filters=[Filter(name="envoy.filters.network.http_connection_manager", typed_config=manager)],
                transport_socket=None if tls is None else downstream_tls_socket(tls),
            )
        ],
        per_connection_buffer_limit_bytes=buffer_bytes,
    )


def _fields_and_quotas(
    spec: ListenerSpec, prefix_lengths: tuple[int, ...], estimate: TokenEstimate | None
) -> Iterator[HttpFilter]:
    """Filters that refuse by quota and that read bodies. Requests are counted before their body is read; tokens
    are known after it.
    """
    fields, quotas = _fields_filter(spec, prefix_lengths, estimate), quota_filters(spec.port, spec.tenants)
    if spec.tenants is not None and spec.tenants.counts_tokens:
        yield from fields
        yield from quotas
    else:
        yield from quotas
        yield from fields


def _fields_filter(
    spec: ListenerSpec, prefix_lengths: tuple[int, ...], estimate: TokenEstimate | None
) -> Iterator[HttpFilter]:
    """The filters that read bodies; none if callers state the fields in headers."""
    if not spec.reads_headers:
        yield HttpFilter(name=FIELDS_FILTER, typed_config=fields_filter(prefix_lengths, estimate))
    if prefix_lengths:
        yield HttpFilter(name=PREFIX_FILTER, typed_config=prefix_state_filter(prefix_lengths))


def _removed_headers(spec: ListenerSpec, *, estimates: bool) -> HeaderMutation:
    """Removes headers of Envoy and of claims, and repetitions of stated fields, before any filter reads them."""
    envoys = StringMatcher(prefix=ENVOYS_HEADERS)
    return HeaderMutation(
        mutations=[
            MutationRule(remove_on_match=MutationRuleRemoveOnMatch(key_matcher=envoys)),
            *(MutationRule(remove=name) for name in spec.proven_headers()),
            *_identity(spec),
            *(MutationRule(remove=OVER_QUOTA_HEADER) for _ in (spec.tenants,) if spec.tenants is not None),
            *(MutationRule(remove=ESTIMATED_TOKENS_HEADER) for _ in (estimates,) if estimates),
            *(MutationRule(append=_only_first(name)) for name in STATED_HEADERS if spec.reads_headers),
            *deadline_mutations(spec.deadline),
        ]
    )


def _identity(spec: ListenerSpec) -> Iterator[MutationRule]:
    """Sets the header of the identity to what the certificate of the caller proves."""
    if spec.tls is not None and spec.tls.callers is not None and (name := spec.tls.callers.identity_header):
        yield MutationRule(append=_header(name, _IDENTITIES[spec.tls.callers.identity]))


def _only_first(name: str) -> HeaderValueOption:
    # Envoy 1.40 matches each value of a repeated header by itself, earlier ones match them joined by commas.
    return HeaderValueOption(
        header=HeaderValue(key=name, value=f"%REQ({name})%"),
        append_action=HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS,
    )


def _local_replies(spec: ListenerSpec, *, static_answers: bool) -> LocalReplyConfig:
    """Envoy's local replies in the shape of the OpenAI API, with the reason in a header."""
    message = {
        "message": Value(string_value="%LOCAL_REPLY_BODY%"),
        "type": Value(string_value="switchgear"),
        "code": Value(string_value="%RESPONSE_CODE%"),
    }
    return LocalReplyConfig(
        mappers=[
            *([_static_answer()] if static_answers else []),
            _no_route(),
            *(_reply(_flag(flag), reason, retry_after) for flag, reason, retry_after in LOCAL_REPLY_REASONS),
            *(_reply(_status(status, reason), reason, None) for status, reason in LOCAL_REPLY_STATUSES),
            _aborted_body(),
            _bad_request(),
            *_auth_replies(spec),
            *_quota_replies(spec),
        ],
        body_format=SubstitutionFormatString(
            json_format=Struct(fields={"error": Value(struct_value=Struct(fields=message))})
        ),
    )


def _auth_replies(spec: ListenerSpec) -> Iterator[ResponseMapper]:
    """Reasons of refusals by the filters that check callers; none without them."""
    if spec.ext_auth is not None:
        unanswered = AndFilter(filters=[_flag(EXT_AUTH_FLAG), _status(EXT_AUTH_UNAVAILABLE, "ext_auth")])
        yield _reply(AccessLogFilter(and_filter=unanswered), NO_AUTHORIZATION_REASON, NO_AUTHORIZATION_RETRY_AFTER)
        yield _reply(_flag(EXT_AUTH_FLAG), NOT_AUTHORIZED_REASON, None)
    if spec.jwt is not None:
        yield _reply(_status(401, "no_token"), INVALID_TOKEN_REASON, None)
        yield _reply(_status(403, "audience"), INVALID_TOKEN_REASON, None)


def _quota_replies(spec: ListenerSpec) -> Iterator[ResponseMapper]:
    if spec.tenants is not None and spec.tenants.fair_shares:
        mapper = _reply(_flag(SHARE_FLAG), SHARE_REASON, str(SHARE_RETRY_AFTER_S))
        mapper.body = DataSource(
            inline_string="the model has no room for all requests, and this tenant is above its share; try later"
        )
        yield mapper
    if spec.tenants is not None and spec.tenants.has_quotas:
        # Envoy sets the flag RL only after the reply.
        mapper = _reply(_status(429, "quota"), QUOTA_REASON, None)
        mapper.body = DataSource(inline_string="the quota of this tenant is used up; try again later")
        yield mapper


def _reply(when: AccessLogFilter, reason: str, retry_after: str | None) -> ResponseMapper:
    headers = [_header(REASON_HEADER, reason)]
    if retry_after is not None:
        headers.append(_header("retry-after", retry_after))
    return ResponseMapper(filter=when, headers_to_add=headers)


def _static_answer() -> ResponseMapper:
    """Keeps the body of a static answer; with an unchanged body Envoy keeps its ``content-type``, too."""
    as_it_is = SubstitutionFormatString(text_format_source=DataSource(inline_string="%LOCAL_REPLY_BODY%"))
    return ResponseMapper(filter=got_static_answer(), body_format_override=as_it_is)


def _no_route() -> ResponseMapper:
    # The catch-all route leads to a missing cluster and returns 404.
    status = _status(404, "no_route")
    return ResponseMapper(
        filter=AccessLogFilter(and_filter=AndFilter(filters=[status, _flag("NC")])),
        body=DataSource(inline_string="no route of this port matches the request"),
        headers_to_add=[_header(REASON_HEADER, "no-route")],
    )


def _aborted_body() -> ResponseMapper:
    # The overload manager replies 500 while a body arrives over HTTP/1, and sets the flag OM only afterwards.
    return ResponseMapper(
        filter=_status(500, "aborted_body"),
        status_code=503,
        body=DataSource(inline_string="the proxy is short of memory; try again"),
        headers_to_add=[_header(REASON_HEADER, "proxy-overload"), _header("retry-after", "1")],
    )


def _bad_request() -> ResponseMapper:
    # A script that refuses a body has set its own reason.
    reason = HeaderValueOption(
        header=HeaderValue(key=REASON_HEADER, value=BAD_REQUEST_REASON),
        append_action=HeaderValueOptionHeaderAppendAction.ADD_IF_ABSENT,
    )
    return ResponseMapper(filter=_status(400, "bad_request"), headers_to_add=[reason])


def _status(status: int, name: str) -> AccessLogFilter:
    return AccessLogFilter(
        status_code_filter=StatusCodeFilter(
            comparison=ComparisonFilter(
                op=ComparisonFilterOp.EQ,
                value=RuntimeUInt32(
                    default_value=status, runtime_key=f"switchgear.{name.replace('-', '_')}_status"
                ),
            )
        )
    )


def _flag(flag: str) -> AccessLogFilter:
    return AccessLogFilter(response_flag_filter=ResponseFlagFilter(flags=[flag]))


def _header(name: str, value: str) -> HeaderValueOption:
    return HeaderValueOption(
        header=HeaderValue(key=name, value=value),
        append_action=HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
    )
