"""A client that finds its servers by grpc-python's own xDS (``xds:///``), and servers that say who they are.

It reads its bootstrap from the environment once per process, so it is a process of its own that prints one answer
per line asked for.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc

from xds_server.publish import Publisher

LIMIT_S: Final = 90.0

_CLIENT: Final = """
import sys, grpc
call = grpc.insecure_channel(sys.argv[1]).unary_unary("/test.Echo/Who")
for line in sys.stdin:
    try:
        print(call(b"", timeout=60, wait_for_ready=True).decode(), flush=True)
    except grpc.RpcError as error:
        print(f"{error.code().name} {error.details()}", flush=True)
"""


class _NameHandler(grpc.GenericRpcHandler):
    """Answers every call with a name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def service(self, handler_call_details: Any) -> Any:  # noqa: ARG002
        async def who(_request: bytes, _context: object) -> bytes:
            return self._name.encode()

        return grpc.unary_unary_rpc_method_handler(who)


@asynccontextmanager
async def answering(*names: str) -> AsyncIterator[dict[str, int]]:
    """A server for each name; what it yields are their ports."""
    servers, ports = [], {}
    for name in names:
        server = grpc.aio.server(handlers=[_NameHandler(name)])
        ports[name] = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        servers.append(server)
    try:
        yield ports
    finally:
        for server in servers:
            await server.stop(None)


async def answered_by(ask: Callable[[], Awaitable[str]], *names: str) -> None:
    """Return once several consecutive calls reached exactly these engines, each at least once.

    A client spreads its calls over those that it is connected to, and it connects to one after another.
    """
    give_up_at = time.monotonic() + LIMIT_S
    while (answers := {await ask() for _ in range(10)}) != set(names):
        assert time.monotonic() < give_up_at, answers


async def in_step(publisher: Publisher) -> None:
    """Return once every proxy has confirmed all that it was sent: a client may act first and confirm then."""
    give_up_at = time.monotonic() + LIMIT_S
    while states := {status.state.value for proxy in publisher.proxies() for status in proxy.types} - {"SYNCED"}:
        assert time.monotonic() < give_up_at, states
        await asyncio.sleep(0.02)


@asynccontextmanager
async def calling(target: str, xds_port: int, node: str, zone: str) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """A client of this node and zone, which the control plane at this port leads; what it yields asks once."""
    config = {
        "xds_servers": [
            {
                "server_uri": f"127.0.0.1:{xds_port}",
                "channel_creds": [{"type": "insecure"}],
                "server_features": ["xds_v3"],
            }
        ],
        "node": {"id": node, "locality": {"zone": zone}},
    }
    client = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _CLIENT,
        target,
        env={"GRPC_XDS_BOOTSTRAP_CONFIG": json.dumps(config)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )

    async def ask() -> str:
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(b"\n")
        return (await asyncio.wait_for(client.stdout.readline(), LIMIT_S)).decode().strip()

    try:
        yield ask
    finally:
        client.kill()
        await client.wait()
