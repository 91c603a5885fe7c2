"""Policies of two pools, and a traffic store for them."""

import json
from pathlib import Path
from typing import Any

import pytest

from policies.load import load
from policies.model import PolicySet
from xds_server.telemetry.pool_directory import build_directory
from xds_server.telemetry.traffic_store import TrafficStore

WINDOW = 10


def documents(engines: int = 4, *, hedged: bool = False) -> list[dict[str, Any]]:
    endpoints = [
        {"address": "10.0.0.1", "port": 8000 + n, "name": f"e{n}", "zone": "ab"[n % 2]} for n in range(engines)
    ]
    far = {"address": "far.example", "port": 9000, "name": "far"}
    return [
        {"kind": "EnginePool", "metadata": {"name": "chat"}, "spec": {"model": "m", "endpoints": endpoints}},
        {"kind": "EnginePool", "metadata": {"name": "small"}, "spec": {"model": "s", "endpoints": [far]}},
        {
            "kind": "ModelRoute",
            "metadata": {"name": "talk"},
            "spec": {"listener": {"port": 8080}, "pools": [{"pool": "chat"}], "fallbacks": ["small"]},
        },
        {
            "kind": "ModelRoute",
            "metadata": {"name": "night"},
            "spec": {
                "listener": {"port": 8081},
                "pools": [{"pool": "chat"}],
                "priority": "batch",
            },
        },
        {
            "kind": "ResiliencePolicy",
            "metadata": {"name": "default"},
            "spec": {"breaker": {"windowCalls": WINDOW, "minCalls": 5}, "hedging": {"enabled": hedged}},
        },
    ]


def policies_of(folder: Path, found: list[dict[str, Any]]) -> PolicySet:
    path = folder / "policies.yaml"
    path.write_text("\n---\n".join(json.dumps({"apiVersion": "switchgear.dev/v1alpha1", **one}) for one in found))
    return load([path])


@pytest.fixture(scope="session")
def policies(tmp_path_factory: pytest.TempPathFactory) -> PolicySet:
    return policies_of(tmp_path_factory.mktemp("policies"), documents())


@pytest.fixture
def book(policies: PolicySet) -> TrafficStore:
    made = TrafficStore()
    made.set_directory(build_directory(policies, {"far.example": "192.0.2.7"}))
    return made
