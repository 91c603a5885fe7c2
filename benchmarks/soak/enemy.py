"""A hostile proxy, a hostile operator's host and a hostile agent: ``python -m benchmarks.soak.enemy XDS ADMIN``.

They draw attacks by seed, one after another, until they are killed, and come back when they are refused.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import time
from collections.abc import Sequence
from typing import Final

import grpc

from benchmarks.soak.attack_corpus import (
    ENEMY,
    HALF_FIRST_MESSAGES,
    HALF_MESSAGES,
    ProxyAttack,
    proxy_attacks,
    subscription,
)
from benchmarks.soak.half_messages import DISCOVERY, SCRIPT
from xds_server.wire.decode import DeltaDiscoveryRequest, DeltaDiscoveryResponse

Call = grpc.aio.StreamStreamCall[bytes, bytes]

ATTACK_S: Final = 5.0
LASTING_S: Final = 3_600.0
RETRY_S: Final = 0.02
_OPTIONS: Final = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 500))

LATE_SHARE: Final = 0.3
LATE_S: Final = 0.5
LATE_REFUSAL: Final = "Error adding/updating cluster(s) chat: its secrets are refused"
"""Of what was accepted at first, the share that is refused this much later."""

ALL: Final = "all"

HALF: Final = (2, 120, 2 * 1024 * 1024)
"""Connections, streams of each, and bytes of each message."""

HALF_AGAIN_S: Final = 1.0
"""Until it begins again, with new connections."""

REQUESTS: Final = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20,
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\n\r\n",
    b"POST /v1/orders HTTP/1.1\r\nHost: localhost\r\nContent-Length: 70000\r\n\r\n" + b"{" * 65_536,
    b"POST /v1/orders HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 2\r\n\r\n{}",
    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: ",
    b"",
)
"""What the hostile host sends to the admin port, and then nothing more."""


async def connected_proxy(target: str, node: str, rng: random.Random) -> None:
    """A proxy whose discovery stream stands, so that its telemetry counts.

    It accepts everything, and refuses some of it later: as an Envoy does whose clusters fail when they are warmed.
    """
    async with grpc.aio.insecure_channel(target, options=_OPTIONS) as channel:
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                call: Call = channel.stream_stream(DISCOVERY)()
                await call.write(subscription(node))
                while isinstance(data := await call.read(), bytes):
                    answer = DeltaDiscoveryResponse.FromString(data)
                    reply = DeltaDiscoveryRequest(type_url=answer.type_url, response_nonce=answer.nonce)
                    await call.write(reply.SerializeToString())
                    if rng.random() < LATE_SHARE:
                        await asyncio.sleep(LATE_S)
                        reply.error_detail.message = LATE_REFUSAL
                        await call.write(reply.SerializeToString())
            await asyncio.sleep(RETRY_S)


async def attack(target: str, one: ProxyAttack, lasts_s: float, pause_s: float = 0.0) -> None:
    """Play an attack, with this pause after each message; open its stream again when the server ends it."""
    over_at = time.monotonic() + lasts_s
    async with grpc.aio.insecure_channel(target, options=_OPTIONS) as channel:
        while time.monotonic() < over_at:
            call: Call = channel.stream_stream(one.method)()
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
                async with asyncio.timeout(max(0.1, over_at - time.monotonic())):
                    await call.write(one.first)
                    while one.then:
                        for message in one.then:
                            await call.write(message)
                            await asyncio.sleep(pause_s)
                    await call.read()
            call.cancel()
            await asyncio.sleep(RETRY_S)


async def half_messages(target: str, lasts_s: float, *node: str) -> None:
    """Fill the server with half messages, again and again; this node sends a complete one first."""
    command = (SCRIPT, target, *map(str, HALF), *node)
    # Its input ends with this process, and that ends it.
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(lasts_s):
                while process.returncode is None:
                    await asyncio.sleep(HALF_AGAIN_S)
                    assert process.stdin is not None
                    process.stdin.write(b"\n")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def hostile_host(admin: str, rng: random.Random) -> None:
    """Connections to the admin port that send a part of something, and stay."""
    host, _, port = admin.rpartition(":")
    kept: list[asyncio.StreamWriter] = []
    while True:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(rng.choice(REQUESTS))
            kept.append(writer)
        if len(kept) > 200:
            kept.pop(rng.randrange(len(kept))).close()
        await asyncio.sleep(RETRY_S)


REPORTS: Final = (b"", b"\xff" * 100, b"\x0a\x00" * 30_000, b"\x0a" * 70_000, b"\x08\x01")
"""What the hostile agent sends: nothing, garbage, many empty fields, a report above the limit, too little."""


class HostileAgent(grpc.GenericRpcHandler):
    """Answers every call with reports without end."""

    def __init__(self, rng: random.Random, pause_s: float) -> None:
        async def behave(_requests: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
            while True:
                await context.write(rng.choice(REPORTS))
                await asyncio.sleep(pause_s)

        self._handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(behave)

    def service(
        self,
        handler_call_details: grpc.HandlerCallDetails,  # noqa: ARG002 -- for any method
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        """The same handler for every method."""
        return self._handler


async def run(asked: argparse.Namespace) -> None:
    """Attack until killed."""
    rng = random.Random(asked.seed)
    node = f"{ENEMY}-{asked.seed}"
    agent = grpc.aio.server(handlers=[HostileAgent(rng, asked.pause)])
    if asked.agent:
        agent.add_insecure_port(f"127.0.0.1:{asked.agent}")
        await agent.start()
    attacks = proxy_attacks(node)
    every = [*sorted(attacks), HALF_FIRST_MESSAGES, HALF_MESSAGES]

    async def play(name: str, lasts_s: float) -> None:
        if name in attacks:
            await attack(asked.xds, attacks[name], lasts_s, asked.pause)
        else:
            await half_messages(asked.xds, lasts_s, *((node,) if name == HALF_MESSAGES else ()))

    async def repeat(name: str) -> None:
        while True:
            await play(name, LASTING_S)

    async with asyncio.TaskGroup() as group:
        group.create_task(connected_proxy(asked.xds, node, random.Random(asked.seed)))
        group.create_task(hostile_host(asked.admin, rng))
        sys.stdout.write('{"enemy": "ready"}\n')
        sys.stdout.flush()
        if asked.only:
            for name in every if asked.only == ALL else [asked.only]:
                group.create_task(repeat(name))
            return
        while True:
            await play(rng.choice(every), ATTACK_S)


def main(argv: Sequence[str]) -> int:
    """Attack until killed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak.enemy", description=__doc__)
    parser.add_argument("xds", help="host:port of the discovery service")
    parser.add_argument("admin", help="host:port of the admin port")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help=f"play this attack only; {ALL}: every one at once")
    parser.add_argument("--agent", type=int, default=0, help="port of a hostile agent; 0: none")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each message")
    asyncio.run(run(parser.parse_args(argv)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
