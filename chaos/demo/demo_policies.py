"""The policies that Switchgear gets in the demonstration; plain Envoy gets ``chaos.testbed.static_envoy``."""

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
    """The operator's YAML: one pool over three zones with an agent beside each engine, a pool of a smaller model
    without agents, one route, one policy.
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
                # Both as they are by default; written down so that `switchgear why` has a line to name.
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
                "fallback": FALLBACK_POOL,
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
                    # Above allowed wait plus longest service, so that no healthy work is killed.
                    "streaming": {"firstToken": "3500ms", "betweenTokens": "3s"},
                    "nonStreaming": {"perTry": "3200ms", "total": format_duration(DEADLINE_S)},
                },
                # Three tries of that fit into what a caller waits.
                "retries": {"attempts": 2},
                # Quicker than by default, so that the ladder is gone up and down within a quarter of a minute.
                "degradation": {
                    "enterAfter": "500ms",
                    "leaveAfter": "2s",
                    "fallback": {"maxSharePercent": 60},
                },
            },
        },
    ]
    return yaml.safe_dump_all(documents, sort_keys=False)
