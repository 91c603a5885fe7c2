"""A gRPC client with its own xDS stack finds a pool under its name, ``xds:///POOL``, and no proxy is between."""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from policies.load import load
from xds_server.access.views import view_of
from xds_server.assemble import assemble
from xds_server.decide.decisions import Decisions, EngineDecision, Health
from xds_server.fleet import declared
from xds_server.publish import Publisher
from xds_server.snapshot import Snapshot
from xds_server.translate.translate import translate
from xds_server.translate.view import View
from xds_server.transport import GrpcAdsServer

pytestmark = pytest.mark.envoy

LIMIT_S = 60.0
VIEW = View(role="grpc", zone="a")
CLIENT = """
import sys, grpc
call = grpc.insecure_channel("xds:///llama").unary_unary("/test.Echo/Who")
for line in sys.stdin:
    print(call(b"", timeout=20, wait_for_ready=True).decode(), flush=True)
"""


class Who(grpc.GenericRpcHandler):
    """Answers every call with a name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def service(self, handler_call_details: Any) -> Any:  # noqa: ARG002
        async def who(_request: bytes, _context: object) -> bytes:
            return self._name.encode()

        return grpc.unary_unary_rpc_method_handler(who)


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
    ports, backends = {}, []
    for name in ("a", "b"):
        backend = grpc.aio.server(handlers=[Who(name)])
        ports[name] = backend.add_insecure_port("127.0.0.1:0")
        await backend.start()
        backends.append(backend)
    wanted = compiled(tmp_path / "policy.yaml", ports)
    publisher = Publisher(view_of=view_of, snapshot_for=lambda view: wanted if view == VIEW else None)
    server = GrpcAdsServer(publisher)
    port = await server.start()
    config = {
        "xds_servers": [
            {
                "server_uri": f"127.0.0.1:{port}",
                "channel_creds": [{"type": "insecure"}],
                "server_features": ["xds_v3"],
            }
        ],
        "node": {"id": "caller", "locality": {"zone": "a"}},
    }
    client = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        CLIENT,
        env={"GRPC_XDS_BOOTSTRAP_CONFIG": json.dumps(config)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )

    async def ask() -> str:
        client.stdin.write(b"\n")
        return (await asyncio.wait_for(client.stdout.readline(), LIMIT_S)).decode().strip()

    try:
        assert {await ask() for _ in range(60)} == {"a", "b"}
        publisher.publish({VIEW: compiled(tmp_path / "policy.yaml", ports, out="a")}, time.monotonic())
        give_up_at = time.monotonic() + LIMIT_S
        while (answers := {await ask() for _ in range(20)}) != {"b"}:
            assert time.monotonic() < give_up_at, answers
        (proxy,) = publisher.proxies()
        assert {status.state.value for status in proxy.types} == {"SYNCED"}
    finally:
        client.kill()
        await client.wait()
        await server.stop()
        for backend in backends:
            await backend.stop(None)
