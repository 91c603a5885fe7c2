"""One real server in a process of its own, a proxy that behaves, and whatever wants to harm them."""

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from tests.eventually import eventually
from xds_server.model.type_urls import CLUSTER
from xds_server.wire.decode import DeltaDiscoveryRequest, DeltaDiscoveryResponse

LIMIT_S = 60.0
DELTA = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
POLICY = """\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {{name: chat}}
spec:
  model: m
  probe: {{enabled: false}}
  endpoints:
    - {{address: 127.0.0.1, port: 9, name: e0, zone: z1}}
---
apiVersion: switchgear.dev/v1alpha1
kind: ResiliencePolicy
metadata: {{name: chat}}
spec:
  pools: [chat]
  timeouts: {{connect: {connect}ms}}
"""


@dataclass(kw_only=True)
class Server:
    """``switchgear serve`` on loopback; its log is text, as people read it."""

    process: "subprocess.Popen[bytes]"
    folder: Path
    xds: str
    admin: str
    edits: int = 0

    def edit(self) -> None:
        """Change what every proxy is served."""
        self.edits += 1
        path = self.folder / "policies" / "chat.yaml"
        path.with_suffix(".tmp").write_text(POLICY.format(connect=300 + self.edits))
        path.with_suffix(".tmp").replace(path)

    def log(self) -> str:
        return (self.folder / "serve.log").read_text(errors="strict")

    async def metric(self, name: str, label: str = "") -> float:
        """The sum of a metric over its labels that have this text in them."""

        def read() -> str:
            with urllib.request.urlopen(f"http://{self.admin}/metrics", timeout=LIMIT_S) as answer:
                return str(answer.read().decode())

        lines = (await asyncio.to_thread(read)).splitlines()
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.partition("{")[0].partition(" ")[0] == name and label in line
        )

    async def counts(self, name: str, label: str, above: float) -> None:
        """Return once the metric is above this."""

        async def so() -> bool:
            return await self.metric(name, label) > above

        await eventually(so, f"{name}{{{label}}} above {above}", LIMIT_S)


@pytest.fixture(scope="module", params=["grpc", "h2"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as made,
    ):
        patch.setenv("SWITCHGEAR_TRANSPORT", request.param)
        with started(Path(made)) as running:
            yield running


def launched(folder: Path, *before: str) -> Server:
    """A server on the policies in this folder; ``before`` is what starts it in turn (``prlimit``, say)."""
    command = [
        *before,
        *(sys.executable, "-m", "xds_server", "serve"),
        *("-f", str(folder / "policies"), "--state-dir", str(folder / "state")),
        *("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--first-reports", "0s"),
    ]
    with (folder / "serve.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        process.kill()
        process.wait()
        raise AssertionError((folder / "serve.log").read_text())
    said = json.loads(line)
    return Server(process=process, folder=folder, xds=said["xds"], admin=said["admin"])


def killed(server: Server) -> None:
    """Kill it at once."""
    server.process.kill()
    server.process.wait()
    if server.process.stdout is not None:
        server.process.stdout.close()


@contextlib.contextmanager
def started(folder: Path, *before: str) -> Iterator[Server]:
    """A server with policies of its own; see ``launched``."""
    (folder / "policies").mkdir()
    (folder / "policies" / "chat.yaml").write_text(POLICY.format(connect=300))
    server = launched(folder, *before)
    try:
        yield server
        assert server.process.poll() is None, (folder / "serve.log").read_text()[-4_000:]
        server.process.terminate()
        assert server.process.wait(LIMIT_S) == 0
    finally:
        killed(server)


Call = grpc.aio.StreamStreamCall[bytes, bytes]


@dataclass(kw_only=True)
class Peer:
    """One stream of discovery requests; ``acks`` is how many responses it has taken and confirmed."""

    call: Call
    node: str
    acks: int = 0
    received: list[bytes] = field(default_factory=list)

    async def subscribe(self, type_url: str = CLUSTER, **fields: object) -> None:
        request = DeltaDiscoveryRequest(type_url=type_url, **fields)
        request.node.id = self.node
        await self.call.write(request.SerializeToString())

    async def ack(self, response: bytes) -> None:
        read = DeltaDiscoveryResponse.FromString(response)
        await self.call.write(
            DeltaDiscoveryRequest(type_url=read.type_url, response_nonce=read.nonce).SerializeToString()
        )
        self.acks += 1

    async def behave(self) -> None:
        """Accept every response until cancelled."""
        await self.subscribe()
        while isinstance(data := await self.call.read(), bytes):
            self.received.append(data)
            await self.ack(data)

    async def ended(self) -> grpc.StatusCode:
        """How the server ends the stream."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            while isinstance(await self.call.read(), bytes):
                pass
        return await self.call.code()


@contextlib.asynccontextmanager
async def connected(target: str, node: str, method: str = DELTA) -> AsyncIterator[Peer]:
    async with grpc.aio.insecure_channel(target, options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
        made: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(method)
        call = made()
        try:
            yield Peer(call=call, node=node)
        finally:
            call.cancel()


@dataclass(kw_only=True)
class Neighbour:
    """A well-behaved proxy next to hostile ones."""

    server: Server
    peer: Peer

    async def is_served(self) -> None:
        """Edit the policies, and return once this proxy has accepted the result."""
        before = self.peer.acks
        self.server.edit()
        await eventually(lambda: self.peer.acks > before, "the neighbour's ACK of an edit", LIMIT_S)


@pytest.fixture
async def neighbour(server: Server) -> AsyncIterator[Neighbour]:
    async with connected(server.xds, "neighbour") as peer:
        behaving = asyncio.create_task(peer.behave())
        try:
            await eventually(lambda: peer.acks, "the neighbour's first ACK", LIMIT_S)
            yield Neighbour(server=server, peer=peer)
            assert not behaving.done(), "the neighbour was served to the end"
        finally:
            behaving.cancel()
            await asyncio.wait([behaving])
