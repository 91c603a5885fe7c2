"""Envoy clusters from the breaker and related fields."""

import pytest
from envoy_data_plane.envoy.config.core.v3 import TransportSocket

from policies.resilience import ResilienceSpec
from xds_server.translate.pool_clusters import ClusterForm, pool_cluster


def made(*, hop=False, **breaker):
    return pool_cluster(
        "p", ResilienceSpec.model_validate({"breaker": breaker}), form=ClusterForm(hop=hop)
    ).outlier_detection


@pytest.mark.parametrize(("floor", "ejected"), [(50, 50), (0, 100), (100, 0), (33.4, 66)])
def test_max_ejection_percent_never_breaks_the_capacity_floor(floor, ejected):
    assert made(capacityFloorPercent=floor).max_ejection_percent == ejected
    assert not made(capacityFloorPercent=floor).always_eject_one_host


def test_zero_disables_outlier_detection():
    off = made(consecutiveErrors=0, consecutiveLocalErrors=0, errorRatePercent=0)
    assert off.enforcing_consecutive_5xx == 0
    assert off.enforcing_consecutive_local_origin_failure == 0
    assert off.enforcing_failure_percentage == 0
    on = made()
    assert (on.consecutive_5xx, on.enforcing_consecutive_5xx) == (5, 100)
    assert (on.consecutive_local_origin_failure, on.enforcing_consecutive_local_origin_failure) == (2, 100)
    assert (on.failure_percentage_threshold, on.enforcing_failure_percentage) == (40, 100)


@pytest.mark.parametrize("hop", [False, True])
def test_outlier_detection_local_origin_errors_with_and_without_internal_listeners(hop):
    detection = made(hop=hop)
    assert detection.split_external_local_origin_errors is not hop
    assert detection.enforcing_consecutive_local_origin_failure == (0 if hop else 100)
    assert detection.enforcing_consecutive_gateway_failure == (100 if hop else 0)
    assert detection.consecutive_gateway_failure == detection.consecutive_local_origin_failure == 2


def test_outlier_detection_local_origin_off_through_internal_listeners():
    off = made(hop=True, consecutiveLocalErrors=0)
    assert off.split_external_local_origin_errors
    assert (off.enforcing_consecutive_gateway_failure, off.enforcing_consecutive_local_origin_failure) == (0, 0)


@pytest.mark.parametrize(
    ("breaker", "interval_s", "base_s", "longest_s", "volume"),
    [
        ({}, 1, 1, 60, 8),
        ({"localEjection": "10s"}, 5, 10, 60, 25),
        ({"windowCalls": 100}, 1, 1, 60, 20),
        ({"windowCalls": 4}, 1, 1, 60, 4),
        ({"localEjection": "30s", "cooldown": "10s"}, 5, 30, 30, 25),
    ],
)
def test_outlier_detection_base_ejection_time_is_short_and_grows(breaker, interval_s, base_s, longest_s, volume):
    detection = made(**breaker)
    assert detection.interval.total_seconds() == interval_s
    assert detection.base_ejection_time.total_seconds() == base_s
    assert detection.max_ejection_time.total_seconds() == longest_s
    assert detection.failure_percentage_request_volume == volume


@pytest.mark.parametrize("statuses", [[], [500], [500, 502, 504]])
def test_any_number_of_failure_statuses_is_valid(statuses):
    spec = ResilienceSpec.model_validate({"breaker": {"countStatuses": statuses}})
    (options,) = pool_cluster("p", spec).typed_extension_protocol_options.values()
    matcher = options.unpack().outlier_detection.error_matcher
    if len(statuses) == 3:
        assert len(matcher.or_match.rules) == 3
    else:
        assert matcher.or_match is None


def test_slow_start_is_left_to_endpoint_weights():
    warm = ResilienceSpec.model_validate({"slowStart": {"window": "30s"}})
    assert bytes(pool_cluster("p", warm)) == bytes(pool_cluster("p", ResilienceSpec()))


def test_outlier_detection_ignores_hedging_timeouts():
    hedged = ResilienceSpec.model_validate({"hedging": {"enabled": True, "delay": "1s"}})
    assert pool_cluster("p", hedged).outlier_detection.enforcing_consecutive_local_origin_failure == 0


@pytest.mark.parametrize(
    ("timeouts", "tls", "limit_s"),
    [
        ({}, False, 0.25),
        ({}, True, 1.25),
        ({"connect": "1s"}, True, 2.0),
        ({"connect": "1s", "handshake": "3s"}, True, 4.0),
        ({"handshake": "3s"}, False, 0.25),
    ],
)
def test_connect_limit_has_room_for_the_tls_handshake(timeouts, tls, limit_s):
    spec = ResilienceSpec.model_validate({"timeouts": timeouts})
    socket = TransportSocket(name="tls") if tls else None
    assert pool_cluster("p", spec, tls=socket).connect_timeout.total_seconds() == limit_s
