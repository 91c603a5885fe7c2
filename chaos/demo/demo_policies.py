"""Switchgear's policies in the demo; plain Envoy uses ``chaos.testbed.static_envoy``."""

from collections.abc import Mapping
from typing import Any

import yaml

from chaos.demo.demo_plan import (
    DEADLINE_S,
    ENGINES,
    FALLBACK_ENGINES,
    FALLBACK_SPEED,
    LONGEST_SERVICE_S,
    SERVICE_TIME_S,
    SLOTS,
)
from policies.document import API_VERSION
from policies.quantity import format_duration

POOL = "tiny"
MODEL = "demo-model"
FALLBACK_POOL = "small"
FALLBACK_MODEL = "demo-model-small"
POLICY_FILE = "demo.yaml"


def policies(
    engine_ports: Mapping[str, int],
    agent_ports: Mapping[str, int],
    fallback_ports: Mapping[str, int],
    listener_port: int,
) -> str:
    """Policy YAML: one pool over three zones with agents, a smaller model's pool without agents, one route, one
    policy.
    """
    endpoints = [
        {
            "name": name,
            "address": "127.0.0.1",
            "port": engine_ports[name],
            "agentPort": agent_ports[name],
            "zone": name[0],
        }
        for name in ENGINES
    ]
    fallbacks = [
        {"name": name, "address": "127.0.0.1", "port": fallback_ports[name], "zone": name[0]}
        for name in FALLBACK_ENGINES
    ]
    documents: list[dict[str, Any]] = [
        {
            "apiVersion": API_VERSION,
            "kind": "EnginePool",
            "metadata": {"name": POOL},
            "spec": {
                "model": MODEL,
                "slotsPerEngine": SLOTS,
                "serviceTime": format_duration(SERVICE_TIME_S),
                "longestServiceTime": format_duration(LONGEST_SERVICE_S),
                "firstTokenGate": True,
                # Both are defaults, set explicitly so that `switchgear why` can name their lines.
                "probe": {"stallAfter": "1s", "healthyAfter": 1},
                "endpoints": endpoints,
            },
        },
        {
            "apiVersion": API_VERSION,
            "kind": "EnginePool",
            "metadata": {"name": FALLBACK_POOL},
            "spec": {
                "model": FALLBACK_MODEL,
                "slotsPerEngine": SLOTS,
                "serviceTime": format_duration(SERVICE_TIME_S / FALLBACK_SPEED),
                "longestServiceTime": format_duration(LONGEST_SERVICE_S / FALLBACK_SPEED),
                "firstTokenGate": True,
                "endpoints": fallbacks,
            },
        },
        {
            "apiVersion": API_VERSION,
            "kind": "ModelRoute",
            "metadata": {"name": "chat"},
            "spec": {
                "listener": {"port": listener_port, "address": "127.0.0.1"},
                "pools": [{"pool": POOL}],
                "fallbacks": [FALLBACK_POOL],
            },
        },
        {
            "apiVersion": API_VERSION,
            "kind": "ResiliencePolicy",
            "metadata": {"name": "demo"},
            "spec": {
                "pools": [POOL],
                "limits": {"maxWait": "2s"},
                "timeouts": {
                    # Above the allowed wait plus the longest service time, so that no healthy request is cut.
                    "streaming": {"firstToken": "3500ms", "betweenTokens": "3s"},
                    "nonStreaming": {"perTry": "3200ms", "total": format_duration(DEADLINE_S)},
                },
                # Three attempts fit into a caller's deadline.
                "retries": {"attempts": 2},
                # Faster than the default, so that degradation levels rise and fall within 15 s.
                "degradation": {
                    "enterAfter": "500ms",
                    "leaveAfter": "2s",
                    "fallback": {"maxSharePercent": 60},
                },
            },
        },
    ]
    return yaml.safe_dump_all(documents, sort_keys=False)
