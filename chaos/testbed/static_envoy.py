"""Typical static Envoy configurations: plain, naive retries, hand-tuned, and with a fixed admission limit.

Each is a complete bootstrap; they differ only in the cluster and the route's retry policy. All use the caller's
deadline as timeout. All raise Envoy's default limits (1024 requests, 1024 pending, 3 retries), as meshes do,
except the one with an admission limit.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from xds_server.translate.prefillers import PREFILLER_HEADER

POOL: Final = "chat"
PREFILL_POOL: Final = "prefill"
CEILING_PER_SLOT: Final = 5
"""Fixed admission limit per slot: a wait of 2 s at a service time of 0.5 s."""

_NO_LIMIT: Final = 4_294_967_295
_RETRIED: Final = "connect-failure,refused-stream,reset,retriable-status-codes"


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticEnvoyConfig:
    """One configuration without addresses of answering engines.

    ``ceiling_per_slot`` is divided among the proxies. With ``prefill_ports`` each request names one of these
    prefill engines at random, as a fixed list does.
    """

    cluster: dict[str, Any]
    route: dict[str, Any]
    ceiling_per_slot: float | None = None
    retry_budget_percent: float | None = None
    prefill_ports: tuple[int, ...] = ()


def _other_engine() -> dict[str, Any]:
    name = "envoy.retry_host_predicates.previous_hosts"
    kind = "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
    return {
        "host_selection_retry_max_attempts": 5,
        "retry_host_predicate": [{"name": name, "typed_config": {"@type": kind}}],
    }


def _health_check() -> dict[str, Any]:
    return {
        "health_checks": [
            {
                "timeout": "1s",
                "interval": "1s",
                "no_traffic_interval": "1s",
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                "http_health_check": {"path": "/health"},
            }
        ]
    }


PLAIN: Final = StaticEnvoyConfig(cluster={"lb_policy": "ROUND_ROBIN", **_health_check()}, route={})

NAIVE: Final = StaticEnvoyConfig(
    cluster={"lb_policy": "ROUND_ROBIN", **_health_check()},
    route={"retry_policy": {"retry_on": "5xx", "num_retries": 5, "per_try_timeout": "3s"}},
)

TUNED: Final = StaticEnvoyConfig(
    cluster={
        "lb_policy": "LEAST_REQUEST",
        **_health_check(),
        "common_lb_config": {"healthy_panic_threshold": {"value": 20}},
        "outlier_detection": {
            "consecutive_5xx": 5,
            "interval": "1s",
            "base_ejection_time": "10s",
            "max_ejection_percent": 50,
            "successful_active_health_check_uneject_host": False,
        },
    },
    route={
        "retry_policy": {
            "retry_on": "5xx,reset,connect-failure",
            "num_retries": 2,
            "per_try_timeout": "3s",
            **_other_engine(),
        }
    },
    retry_budget_percent=20,
)

CEILING: Final = StaticEnvoyConfig(
    cluster={
        "load_balancing_policy": {
            "policies": [
                {
                    "typed_extension_config": {
                        "name": "envoy.load_balancing_policies.least_request",
                        "typed_config": {
                            "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies."
                            "least_request.v3.LeastRequest",
                            "choice_count": 3,
                        },
                    }
                }
            ]
        },
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "outlier_detection": {
            "split_external_local_origin_errors": True,
            "consecutive_local_origin_failure": 2,
            "enforcing_consecutive_local_origin_failure": 100,
            "enforcing_consecutive_5xx": 0,
            "enforcing_consecutive_gateway_failure": 0,
            "enforcing_success_rate": 0,
            "enforcing_local_origin_success_rate": 0,
            "interval": "0.25s",
            "base_ejection_time": "1s",
            "max_ejection_time": "1s",
            "max_ejection_percent": 60,
        },
    },
    route={
        "retry_policy": {
            "retry_on": _RETRIED,
            "retriable_status_codes": [500, 503],
            "num_retries": 3,
            "retry_back_off": {"base_interval": "0.025s", "max_interval": "0.1s"},
            **_other_engine(),
        }
    },
    ceiling_per_slot=CEILING_PER_SLOT,
    retry_budget_percent=100,
)


def static_bootstrap(
    static: StaticEnvoyConfig,
    *,
    engine_ports: Sequence[int],
    slots: int,
    proxies: int,
    deadline_s: float,
    listener_port: int,
    admin_port: int,
    listen_address: str = "127.0.0.1",
) -> str:
    """Bootstrap of one of ``proxies`` equal Envoys for engines with ``slots`` in total."""
    thresholds: dict[str, Any] = {
        "max_connections": _NO_LIMIT,
        "max_pending_requests": _NO_LIMIT,
        "max_requests": _NO_LIMIT,
        "max_retries": _NO_LIMIT,
    }
    if static.ceiling_per_slot is not None:
        thresholds["max_requests"] = max(1, round(slots * static.ceiling_per_slot / proxies))
    if static.retry_budget_percent is not None:
        thresholds["retry_budget"] = {
            "budget_percent": {"value": static.retry_budget_percent},
            "min_retry_concurrency": 3,
        }
    cluster = {
        "name": POOL,
        "type": "STATIC",
        "connect_timeout": "1s",
        **static.cluster,
        "circuit_breakers": {"thresholds": [thresholds]},
        "load_assignment": {
            "cluster_name": POOL,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(one)}} for one in engine_ports]}],
        },
    }
    answer = {
        "admin": {"address": _address(admin_port)},
        "static_resources": {
            "listeners": [_listener(static, listen_address, listener_port, deadline_s)],
            "clusters": [cluster],
        },
    }
    # JSON is YAML.
    return json.dumps(answer, indent=1)


def _listener(static: StaticEnvoyConfig, address: str, port: int, deadline_s: float) -> dict[str, Any]:
    route = {"cluster": POOL, "timeout": f"{deadline_s:g}s", **static.route}
    hosts = {"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": route}]}
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3."
        "HttpConnectionManager",
        "stat_prefix": "bench",
        # This id matches engine logs with requests.
        "preserve_external_request_id": True,
        "route_config": {"virtual_hosts": [{**hosts, "include_request_attempt_count": True}]},
        "http_filters": [
            *([_named_prefiller(static.prefill_ports)] if static.prefill_ports else []),
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
            },
        ],
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    return {"name": "bench", "address": _address(port, address), "filter_chains": [chain]}


def _named_prefiller(ports: Sequence[int]) -> dict[str, Any]:
    engines = ", ".join(f'"127.0.0.1:{port}"' for port in ports)
    script = (
        f"local engines = {{{engines}}}\n"
        "function envoy_on_request(handle)\n"
        f'  handle:headers():replace("{PREFILLER_HEADER}", engines[math.random(#engines)])\n'
        "end\n"
    )
    kind = "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua"
    return {
        "name": "envoy.filters.http.lua",
        "typed_config": {"@type": kind, "default_source_code": {"inline_string": script}},
    }


def _address(port: int, address: str = "127.0.0.1") -> dict[str, Any]:
    return {"socket_address": {"address": address, "port_value": port}}
