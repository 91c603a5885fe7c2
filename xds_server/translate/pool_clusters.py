"""Clusters: one per pool, containing only settings that rarely change.

Any changed byte of a cluster makes Envoy warm it again and drop in-flight counts and ejections. So admission
limit and retry budget are unlimited here and set by RTDS (``runtime``), and engines come by EDS (``endpoints``).
Neither the number of engines nor telemetry is an input here.
"""

import math
from dataclasses import dataclass
from typing import Final

from envoy_data_plane.envoy.config.cluster.v3 import (
    CircuitBreakers,
    CircuitBreakersThresholds,
    CircuitBreakersThresholdsRetryBudget,
    Cluster,
    ClusterCommonLbConfig,
    ClusterCommonLbConfigLocalityWeightedLbConfig,
    ClusterDiscoveryType,
    ClusterEdsClusterConfig,
    ClusterLbPolicy,
    ClusterLeastRequestLbConfig,
    OutlierDetection,
)
from envoy_data_plane.envoy.config.common.matcher.v3 import (
    HttpHeadersMatch,
    MatchPredicate,
    MatchPredicateMatchSet,
)
from envoy_data_plane.envoy.config.core.v3 import (
    Http1ProtocolOptions,
    HttpProtocolOptions,
    RoutingPriority,
    TransportSocket,
)
from envoy_data_plane.envoy.config.route.v3 import HeaderMatcher
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import HttpProtocolOptions as UpstreamHttpProtocolOptions
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import (
    HttpProtocolOptionsExplicitHttpConfig,
    HttpProtocolOptionsOutlierDetection,
)
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher
from envoy_data_plane.envoy.type.v3 import Percent

from policies.resilience import Breaker, ResilienceSpec
from xds_server.translate.affinity import bounded_load
from xds_server.translate.envoy_values import EDS_FETCH_TIMEOUT_S, ads_config_source, pack_any, seconds
from xds_server.translate.internal_listeners import internal_upstream_socket
from xds_server.translate.prefill_filters import prefill_filters
from xds_server.translate.residency import AllowedRegions, subset_config
from xds_server.translate.strict_sessions import session_statuses

CHOICE_COUNT: Final = 3
"""Engines compared per pick. Comparing all picks the dead one, which has nothing in flight (measured)."""

UPSTREAM_IDLE_S: Final = 4.0
"""Below the 5 s after which vLLM's HTTP server closes an idle connection (VLLM_HTTP_TIMEOUT_KEEP_ALIVE), so that
Envoy does not send a request on a closing connection.
"""

OPEN_RETRY_PERCENT: Final = 100.0
OPEN_RETRY_CONCURRENCY: Final = 3
"""Envoy's default without a retry budget: three concurrent retries."""

HTTP_OPTIONS: Final = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterForm:
    """What routes, stages and cuts make of a pool's cluster.

    With ``hop`` its endpoints are internal listeners. ``allowed``: sets of regions that routes to it are limited
    to. ``slack_percent``: of routes with soft affinity; None without. ``decodes``: prefill engines are named to
    its engines. ``strict``: a route keeps sessions on its engines.
    """

    hop: bool = False
    allowed: tuple[AllowedRegions, ...] = ()
    slack_percent: float | None = None
    decodes: bool = False
    strict: bool = False


_PLAIN: Final = ClusterForm()


def pool_cluster(
    pool: str, spec: ResilienceSpec, *, form: ClusterForm = _PLAIN, tls: TransportSocket | None = None
) -> Cluster:
    """Envoy cluster of a pool. ``tls``: to the engines, also through a hop, which forwards the bytes unchanged."""
    hop, slack_percent = form.hop, form.slack_percent
    hashed = slack_percent is not None
    return Cluster(
        name=pool,
        type=ClusterDiscoveryType.EDS,
        eds_cluster_config=ClusterEdsClusterConfig(eds_config=ads_config_source(EDS_FETCH_TIMEOUT_S)),
        # Through a hop it covers the engine's TCP connection as well.
        connect_timeout=seconds(spec.timeouts.connection_s(tls=tls is not None)),
        lb_policy=ClusterLbPolicy.MAGLEV if hashed else ClusterLbPolicy.LEAST_REQUEST,
        # No slow_start_config: it ignores engines that EDS returns; see ``decide.routing.slow_start``.
        least_request_lb_config=None if hashed else ClusterLeastRequestLbConfig(choice_count=CHOICE_COUNT),
        lb_subset_config=subset_config(form.allowed),
        common_lb_config=ClusterCommonLbConfig(
            # Ejection is decided centrally; Envoy sends nothing to ejected engines, however many.
            healthy_panic_threshold=Percent(value=0.0),
            locality_weighted_lb_config=ClusterCommonLbConfigLocalityWeightedLbConfig(),
            # By default Envoy batches health changes for 1 s. An engine returned and ejected again at once
            # received requests for all of that second (measured).
            update_merge_window=seconds(0),
            consistent_hashing_lb_config=None if slack_percent is None else bounded_load(slack_percent),
            override_host_status=session_statuses() if form.strict else None,
        ),
        ignore_health_on_host_removal=True,
        circuit_breakers=CircuitBreakers(
            thresholds=[
                _open_threshold(priority, spec.limits.max_connections)
                for priority in (RoutingPriority.DEFAULT, RoutingPriority.HIGH)
            ]
        ),
        transport_socket=internal_upstream_socket(tls) if hop else tls,
        outlier_detection=outlier_detection(spec.breaker, hedged=spec.hedging.enabled, hop=hop),
        typed_extension_protocol_options={
            HTTP_OPTIONS: pack_any(_http_options(spec.breaker.count_statuses, decodes=form.decodes))
        },
    )


def _open_threshold(priority: RoutingPriority, connections: int) -> CircuitBreakersThresholds:
    # Connections and pending requests are unlimited: Envoy counts a connection being opened as pending.
    return CircuitBreakersThresholds(
        priority=priority,
        max_connections=connections,
        max_pending_requests=connections,
        max_requests=connections,
        track_remaining=True,
        retry_budget=CircuitBreakersThresholdsRetryBudget(
            budget_percent=Percent(value=OPEN_RETRY_PERCENT), min_retry_concurrency=OPEN_RETRY_CONCURRENCY
        ),
    )


def outlier_detection(breaker: Breaker, *, hedged: bool = False, hop: bool = False) -> OutlierDetection:
    """Envoy's outlier detection: local to each proxy, fast, and a backstop to the control plane.

    The control plane ejects for as long as needed, so Envoy's ejections are short. They grow with each
    consecutive one, which keeps a failing engine ejected without control plane.

    ``max_ejection_percent`` enforces the capacity floor: Envoy ejects no engine that would violate it, so never
    the only one of a pool.

    Envoy counts a hedge as a timeout of the first try, a local failure of an engine that may only be slow. So
    with hedging, consecutive local failures eject no engine.

    Through a hop every connection succeeds first, which resets Envoy's count of local failures. There they count
    as the 503 and 504 they end in, and only an answer resets the count.
    """
    threshold = math.ceil(breaker.error_rate_percent)
    local_errors = 0 if hedged else breaker.consecutive_local_errors
    as_answers = hop and local_errors > 0
    # Envoy checks the end of ejections, and failure rates, once per interval.
    interval_s = min(breaker.interval, breaker.local_ejection)
    return OutlierDetection(
        interval=seconds(interval_s),
        base_ejection_time=seconds(breaker.local_ejection),
        max_ejection_time=seconds(max(breaker.cooldown, breaker.local_ejection)),
        max_ejection_percent=100 - math.ceil(breaker.capacity_floor_percent),
        always_eject_one_host=False,
        successful_active_health_check_uneject_host=False,
        # Count timeouts and refusals separately from answers: a success of one kind would hide the other.
        split_external_local_origin_errors=not as_answers,
        consecutive_5xx=max(1, breaker.consecutive_errors),
        enforcing_consecutive_5xx=100 if breaker.consecutive_errors else 0,
        consecutive_local_origin_failure=max(1, local_errors),
        enforcing_consecutive_local_origin_failure=100 if local_errors and not as_answers else 0,
        # With an error matcher no answer of an engine is a gateway failure, so these are local ones only.
        consecutive_gateway_failure=max(1, local_errors),
        enforcing_consecutive_gateway_failure=100 if as_answers else 0,
        failure_percentage_threshold=threshold,
        enforcing_failure_percentage=100 if threshold else 0,
        failure_percentage_minimum_hosts=1,
        failure_percentage_request_volume=max(
            min(breaker.min_calls, breaker.window_calls),
            math.ceil(breaker.window_calls * interval_s / breaker.interval),
        ),
        # Envoy enables these by default, with thresholds unfit for load shedding and small fleets.
        enforcing_success_rate=0,
        enforcing_local_origin_success_rate=0,
    )


def _http_options(count_statuses: tuple[int, ...], *, decodes: bool) -> UpstreamHttpProtocolOptions:
    return UpstreamHttpProtocolOptions(
        explicit_http_config=HttpProtocolOptionsExplicitHttpConfig(http_protocol_options=Http1ProtocolOptions()),
        common_http_protocol_options=HttpProtocolOptions(idle_timeout=seconds(UPSTREAM_IDLE_S)),
        outlier_detection=HttpProtocolOptionsOutlierDetection(error_matcher=_errors(count_statuses)),
        http_filters=prefill_filters() if decodes else [],
    )


def _errors(statuses: tuple[int, ...]) -> MatchPredicate:
    """Answers that count as failures of an engine; none without statuses."""
    rules = [_status_is(status) for status in statuses]
    if not rules:
        return MatchPredicate(not_match=MatchPredicate(any_match=True))
    if len(rules) == 1:
        return rules[0]  # Envoy refuses a set of fewer than two
    return MatchPredicate(or_match=MatchPredicateMatchSet(rules=rules))


def _status_is(status: int) -> MatchPredicate:
    matcher = HeaderMatcher(name=":status", string_match=StringMatcher(exact=str(status)))
    return MatchPredicate(http_response_headers_match=HttpHeadersMatch(headers=[matcher]))
