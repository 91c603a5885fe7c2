"""Envoy with an endpoint picker: it asks about each request, and sends it where the answer says.

As gateways with an InferencePool are set up: a picker that does not answer fails the request. Nothing else stands
between: no retries, no outlier detection, no limit of what is let in.
"""

import json
from collections.abc import Sequence
from typing import Any

from chaos.testbed.static_envoy import PLAIN, static_bootstrap

ENGINE_HEADER = "x-gateway-destination-endpoint"
"""In which the picker says where to send a request."""

_PICKER = "picker"
_HTTP2 = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def picker_bootstrap(
    picker_port: int,
    *,
    engine_ports: Sequence[int],
    slots: int,
    proxies: int,
    deadline_s: float,
    listener_port: int,
    admin_port: int,
) -> str:
    """The bootstrap of plain Envoy, but that the picker chooses."""
    said: dict[str, Any] = json.loads(
        static_bootstrap(
            PLAIN,
            engine_ports=engine_ports,
            slots=slots,
            proxies=proxies,
            deadline_s=deadline_s,
            listener_port=listener_port,
            admin_port=admin_port,
        )
    )
    resources = said["static_resources"]
    (pool,) = resources["clusters"]
    for none in ("load_assignment", "health_checks"):
        del pool[none]
    pool |= {
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": ENGINE_HEADER},
    }
    resources["clusters"].append(_cluster(picker_port, deadline_s))
    (chain,) = resources["listeners"][0]["filter_chains"]
    chain["filters"][0]["typed_config"]["http_filters"].insert(0, _asks())
    return json.dumps(said, indent=1)


def _asks() -> dict[str, Any]:
    return {
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": _PICKER}},
            # As long as it takes: on a busy machine its delay is not its verdict.
            "message_timeout": "10s",
            # Bodies as well: it reads the model in them, and usage in answers.
            "processing_mode": {
                "request_header_mode": "SEND",
                "request_body_mode": "FULL_DUPLEX_STREAMED",
                "request_trailer_mode": "SEND",
                "response_header_mode": "SEND",
                "response_body_mode": "FULL_DUPLEX_STREAMED",
                "response_trailer_mode": "SEND",
            },
        },
    }


def _cluster(port: int, deadline_s: float) -> dict[str, Any]:
    address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    no_limit = {"max_connections": 100_000, "max_pending_requests": 100_000, "max_requests": 100_000}
    return {
        "name": _PICKER,
        "type": "STATIC",
        "connect_timeout": f"{deadline_s:g}s",
        "circuit_breakers": {"thresholds": [no_limit]},
        "typed_extension_protocol_options": {
            _HTTP2: {
                "@type": f"type.googleapis.com/{_HTTP2}",
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
        "load_assignment": {
            "cluster_name": _PICKER,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    }
