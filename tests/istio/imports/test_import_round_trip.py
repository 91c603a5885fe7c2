"""What an export keeps exactly comes back by an import."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from istio.export.istio_export import export_to_istio
from istio.export.istio_objects import IstioTarget
from istio.loss_report import yaml_stream
from policies.load import load
from policies.model import PolicySet

Import = Callable[..., Any]

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "policies" / "examples").glob("*.yaml"))
KEPT = (
    "breaker.consecutive_errors",
    "breaker.consecutive_local_errors",
    "breaker.local_ejection",
    "breaker.count_statuses",
    "breaker.capacity_floor_percent",
    "limits.max_connections",
    "retries.attempts",
    "retries.conditions",
    "retries.backoff.base",
    "timeouts.connect",
    "slow_start.window",
)
"""Of a policy in force: what Istio has a word for that means the same, in the examples."""


def value(policies: PolicySet, pool: str, path: str) -> Any:
    found: Any = policies.effective[pool]
    for name in path.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_engines_policies_and_routes_come_back(run_import: Import, path: Path) -> None:
    said = load([path])
    models = [f"--model={name}={pool.spec.model}" for name, pool in said.pools.items()]
    back = run_import("istio", yaml_stream(export_to_istio(said, IstioTarget()).objects), *models).policies
    assert back.pools.keys() == said.pools.keys()
    for name, pool in said.pools.items():
        assert back.pools[name].spec.model == pool.spec.model
        assert [
            (one.name, one.address, one.port, one.zone, one.weight) for one in back.pools[name].spec.endpoints
        ] == [(one.name, one.address, one.port, one.zone, one.weight) for one in pool.spec.endpoints]
        for kept in KEPT:
            assert value(back, name, kept) == value(said, name, kept), kept
    for name, route in said.routes.items():
        if route.spec.match.tokens_above is not None:
            assert not [key for key in back.routes if f"-{name}-" in key], "the export leaves it out"
            continue
        # The route for requests that do not stream and change nothing is the one that asks for what we asked.
        (same,) = [one for key, one in back.routes.items() if key.endswith(f"-{name}-non-streaming")]
        assert same.spec.match == route.spec.match
        assert same.spec.listener.port == route.spec.listener.port
        assert [share.pool for share in same.spec.pools] == [share.pool for share in route.spec.pools]


def test_tls_comes_back(run_import: Import) -> None:
    said = load([ROOT / "tests" / "golden" / "engine-tls" / "policy.yaml"])
    for place in (IstioTarget(), IstioTarget(gateway="ingress/public")):
        back = run_import("istio", yaml_stream(export_to_istio(said, place).objects)).policies
        for name in ("by-server-name", "by-identity"):
            assert back.pools[name].spec.tls == said.pools[name].spec.tls
        # A name common to all engines is exported even if not set in the policy.
        assert back.pools["by-host-name"].spec.tls.server_name == "e1.example.com"
