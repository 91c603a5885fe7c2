"""Configuration of simulated static Envoys, from the bootstraps of ``static_envoy``. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from chaos.simulator.proxy_config import (
    NO_LIMIT,
    ClusterConfig,
    HealthCheckConfig,
    LocalityConfig,
    OutlierDetectionConfig,
    ProxyConfig,
    RequestLimits,
    RouteConfig,
    UpstreamHost,
)
from chaos.testbed.request_shape import KINDS
from chaos.testbed.static_envoy import POOL, StaticEnvoyConfig
from policies.quantity import parse_duration

_PANIC_PERCENT: Final = 50.0
_CHOICES: Final = 2
_SERVER_ERRORS: Final = frozenset(range(500, 600))
_PREVIOUS_HOSTS: Final = "envoy.retry_host_predicates.previous_hosts"


def static_proxy_config(
    static: StaticEnvoyConfig,
    *,
    engines: Sequence[str],
    slots: int,
    proxies: int,
    deadline_s: float,
    prefillers: Sequence[str] = (),
) -> ProxyConfig:
    """Configuration of each of equal proxies; defaults are Envoy's. Each request names one of ``prefillers``."""
    ceiling = NO_LIMIT
    if static.ceiling_per_slot is not None:
        ceiling = max(1, round(slots * static.ceiling_per_slot / proxies))
    hosts = tuple(UpstreamHost(engine=one) for one in engines)
    rules = replace(_rules(static.route.get("retry_policy", {}), deadline_s), prefillers=tuple(prefillers))
    return ProxyConfig(
        clusters=MappingProxyType({POOL: _cluster(static.cluster)}),
        localities=MappingProxyType({POOL: (LocalityConfig(zone="", weight=1, hosts=hosts),)}),
        limits=MappingProxyType(
            {POOL: RequestLimits(interactive=ceiling, batch=ceiling, retry_percent=static.retry_budget_percent)}
        ),
        rules=MappingProxyType(dict.fromkeys(KINDS, rules)),
    )


def _cluster(said: Mapping[str, Any]) -> ClusterConfig:
    least = _least_request(said)
    panic = said.get("common_lb_config", {}).get("healthy_panic_threshold", {}).get("value", _PANIC_PERCENT)
    return ClusterConfig(
        round_robin=said.get("lb_policy") == "ROUND_ROBIN",
        choices=_CHOICES if least is None else least,
        panic_percent=float(panic),
        connect_s=1.0,
        outliers=_outliers(said["outlier_detection"]) if "outlier_detection" in said else None,
        checks=next((_checks(one) for one in said.get("health_checks", ())), None),
    )


def _least_request(said: Mapping[str, Any]) -> int | None:
    for policy in said.get("load_balancing_policy", {}).get("policies", ()):
        count = policy["typed_extension_config"]["typed_config"].get("choice_count")
        return None if count is None else int(count)
    return None


def _checks(said: Mapping[str, Any]) -> HealthCheckConfig:
    return HealthCheckConfig(
        interval_s=parse_duration(said["interval"]),
        timeout_s=parse_duration(said["timeout"]),
        unhealthy_after=int(said["unhealthy_threshold"]),
        healthy_after=int(said["healthy_threshold"]),
    )


def _outliers(said: Mapping[str, Any]) -> OutlierDetectionConfig:
    split = bool(said.get("split_external_local_origin_errors", False))
    enforced = said.get("enforcing_consecutive_5xx", 100)
    base_s = parse_duration(said.get("base_ejection_time", "30s"))
    return OutlierDetectionConfig(
        statuses=_SERVER_ERRORS,
        consecutive=int(said.get("consecutive_5xx", 5)) if enforced else 0,
        consecutive_local=int(said.get("consecutive_local_origin_failure", 5)) if split else 0,
        split=split,
        local_as_gateway=False,
        failure_percent=0,
        failure_volume=0,
        interval_s=parse_duration(said.get("interval", "10s")),
        base_ejection_s=base_s,
        max_ejection_s=max(base_s, parse_duration(said.get("max_ejection_time", "300s"))),
        max_ejection_percent=float(said.get("max_ejection_percent", 10)),
    )


def _rules(said: Mapping[str, Any], deadline_s: float) -> RouteConfig:
    backoff = said.get("retry_back_off", {})
    base_s = parse_duration(backoff.get("base_interval", "25ms"))
    predicates = {one["name"] for one in said.get("retry_host_predicate", ())}
    return RouteConfig(
        weights=MappingProxyType({POOL: 1}),
        retried=frozenset(said.get("retry_on", "").split(",")) - {""},
        statuses=frozenset(said.get("retriable_status_codes", ())),
        attempts=int(said.get("num_retries", 0)),
        elsewhere=_PREVIOUS_HOSTS in predicates,
        per_try_s=parse_duration(said["per_try_timeout"]) if "per_try_timeout" in said else None,
        total_s=deadline_s,
        backoff_base_s=base_s,
        backoff_max_s=parse_duration(backoff["max_interval"]) if "max_interval" in backoff else 10 * base_s,
    )
