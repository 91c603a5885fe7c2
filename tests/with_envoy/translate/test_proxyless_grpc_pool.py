"""A gRPC client with its own xDS stack finds a pool under its name, ``xds:///POOL``, and no proxy is between."""

import time
from pathlib import Path

import pytest

from policies.load import load
from tests.with_envoy.grpc_client import answered_by, answering, calling, in_step
from xds_server.auth.node_view import view_of
from xds_server.decide.decisions import Decisions, EngineDecision, Health
from xds_server.model.fleet import declared
from xds_server.model.snapshot import Snapshot
from xds_server.model.view import View
from xds_server.publish import Publisher
from xds_server.publish.grpc_ads import GrpcAdsServer
from xds_server.reconcile.assembler import assemble
from xds_server.translate.view_resources import translate

pytestmark = pytest.mark.envoy

VIEW = View(role="grpc", zone="a")


def compiled(path: Path, ports: dict[str, int], out: str = "") -> Snapshot:
    engines = ", ".join(
        f"{{address: 127.0.0.1, port: {port}, name: {name}, zone: {name}}}" for name, port in ports.items()
    )
    path.write_text(
        f"""apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {{name: llama}}
spec: {{model: llama, endpoints: [{engines}]}}
"""
    )
    policies = load([path])
    fleet = declared(policies)
    decided = {
        engine.id: EngineDecision(
            health=Health.DRAINING if engine.id.engine == out else Health.HEALTHY, reason="", since_s=0
        )
        for engine in fleet.pools["llama"]
    }
    return assemble(translate(policies, fleet, Decisions(engines=decided, zone_weights={}, ceilings={}), VIEW))


async def test_a_grpc_client_reaches_the_engines_of_a_pool_and_leaves_one_that_drains(tmp_path):
    async with answering("a", "b") as ports:
        wanted = compiled(tmp_path / "policy.yaml", ports)
        publisher = Publisher(view_of=view_of, snapshot_for=lambda view: wanted if view == VIEW else None)
        server = GrpcAdsServer(publisher)
        port = await server.start()
        try:
            async with calling("xds:///llama", port, "caller", "a") as ask:
                await answered_by(ask, "a", "b")
                publisher.publish({VIEW: compiled(tmp_path / "policy.yaml", ports, out="a")}, time.monotonic())
                await answered_by(ask, "b")
                (_,) = publisher.proxies()
                await in_step(publisher)
        finally:
            await server.stop()
