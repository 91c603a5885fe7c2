"""Four attacks of one connected peer, by a client of its own: bytes over a socket, without the code under test."""

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, StreamEnded, StreamReset
from h2.exceptions import ProtocolError

LIMIT_S = 60.0
MIB = 1024 * 1024
ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
ALS = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"
LRS = "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats"
TYPES = {
    "cluster": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
    "endpoint": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
    "listener": "type.googleapis.com/envoy.config.listener.v3.Listener",
    "route": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
}
POLICY = """\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: chat}
spec:
  model: m
  probe: {enabled: false}
  endpoints: [{address: 127.0.0.1, port: 9, name: e0}]
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: chat}
spec: {listener: {port: 18080}, pools: [{pool: chat}]}
"""


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def text(field: int, value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Fields of varints and of bytes."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            value |= (message[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if message[at - 1] < 0x80:
                return value

    while at < len(message):
        key = number()
        if key & 7 == 2:
            size = number()
            yield key >> 3, message[at : at + size]
            at += size
        else:
            yield key >> 3, varint(number())


def node(name: str) -> bytes:
    return text(1, name)


class Client:
    """One connection; messages are those of gRPC."""

    connections: ClassVar[list[socket.socket]] = []

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.connections.append(self.socket)
        self.socket.settimeout(0.05)
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._h2.initiate_connection()
        self._unsent: dict[int, bytes] = {}
        self._received: dict[int, bytes] = {}
        self.ended: set[int] = set()

    def open(self, path: str) -> int:
        stream = self._h2.get_next_available_stream_id()
        headers = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x")]
        self._h2.send_headers(stream, [*headers, ("te", "trailers"), ("content-type", "application/grpc")])
        self._unsent[stream], self._received[stream] = b"", b""
        self.step()
        return stream

    def send(self, stream: int, message: bytes, *, announced: int | None = None) -> None:
        self._unsent[stream] += struct.pack(">BI", 0, announced or len(message)) + message

    def step(self) -> None:
        """Send and receive what is possible now."""
        for stream, unsent in self._unsent.items():
            data = unsent
            while data and stream not in self.ended:
                room = min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size, len(data))
                if room <= 0:
                    break
                self._h2.send_data(stream, data[:room])
                data = data[room:]
            self._unsent[stream] = b"" if stream in self.ended else data
        self.socket.settimeout(LIMIT_S)
        self.socket.sendall(self._h2.data_to_send())
        self.socket.settimeout(0.05)
        try:
            data = self.socket.recv(65_536)
        except TimeoutError:
            return
        for event in self._h2.receive_data(data):
            if isinstance(event, DataReceived):
                self._received[event.stream_id] += event.data
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, StreamEnded | StreamReset):
                self.ended.add(event.stream_id)
        self.socket.sendall(self._h2.data_to_send())

    def sent(self, stream: int) -> bool:
        return not self._unsent[stream]

    def message(self, stream: int, limit_s: float = LIMIT_S) -> bytes | None:
        """The next message; None once the stream has ended, or in time."""
        give_up_at = time.monotonic() + limit_s
        while time.monotonic() < give_up_at:
            data = self._received[stream]
            if len(data) >= 5 and len(data) >= 5 + (size := struct.unpack(">I", data[1:5])[0]):
                self._received[stream] = data[5 + size :]
                return data[5 : 5 + size]
            if stream in self.ended:
                return None
            self.step()
        return None


class Proxy:
    """A delta stream; each type is asked for when the one before has its answer, as Envoy does."""

    def __init__(self, address: str, name: str) -> None:
        self.client = Client(address)
        self.stream = self.client.open(ADS)
        self.name = name

    def ask(self, kind: str, *names: str) -> dict[int, list[bytes]]:
        """Subscribe, and return the answer's fields."""
        message = text(1, node(self.name)) + text(2, TYPES[kind])
        self.client.send(self.stream, message + b"".join(text(3, one) for one in names))
        while True:
            answer = self.client.message(self.stream)
            assert answer is not None, f"no {kind}"
            found: dict[int, list[bytes]] = {}
            for number, value in fields(answer):
                found.setdefault(number, []).append(value)
            if found[4] == [TYPES[kind].encode()]:
                return found

    def answer(self, kind: str, response: dict[int, list[bytes]], *, refuse: bool) -> None:
        error = text(7, b"\x08\x03" + text(2, "unknown field")) if refuse else b""
        self.client.send(self.stream, text(2, TYPES[kind]) + text(6, response[5][0]) + error)
        self.client.step()

    def names(self, response: dict[int, list[bytes]]) -> list[str]:
        return [dict(fields(one))[3].decode() for one in response.get(2, ())]


class Plane:
    """``switchgear serve`` in a process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "policies").mkdir()
        (folder / "policies" / "chat.yaml").write_text(POLICY)
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "xds_server", "serve", "-f", str(self._folder / "policies")]
        command += ["--state-dir", str(self._folder / "state"), "--first-reports", "0s"]
        command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        with (self._folder / "serve.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdout is not None
        self.said: dict[str, Any] = json.loads(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self.said['admin']}{path}", timeout=LIMIT_S) as answer:
            return str(answer.read().decode())

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu_s(self) -> float:
        spent = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(spent[11]) + int(spent[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    made = Plane(tmp_path)
    try:
        yield made
        assert made.process.poll() is None, "the server is still there"
    finally:
        made.kill()
        while Client.connections:
            Client.connections.pop().close()


def refuse_everything(address: str, name: str) -> dict[str, list[str]]:
    proxy = Proxy(address, name)
    seen: dict[str, list[str]] = {}
    for kind, names in (("cluster", ()), ("listener", ())):
        response = proxy.ask(kind, *names)
        seen[kind] = proxy.names(response)
        proxy.answer(kind, response, refuse=True)
    for kind, names in (("endpoint", seen["cluster"]), ("route", ["chat"])):
        response = proxy.ask(kind, *names)
        seen[kind] = proxy.names(response)
        proxy.answer(kind, response, refuse=True)
    for _ in range(5):
        proxy.client.step()
    proxy.client.socket.close()
    return seen


def test_first_proxy_that_refuses_everything_takes_nothing_from_later_ones(plane: Plane) -> None:
    refused = refuse_everything(plane.said["xds"], "outdated")
    assert refused["cluster"]
    assert refused["listener"]
    for restart in (False, True):
        if restart:
            plane.kill()
            plane.start()
        for number in range(3):
            later = Proxy(plane.said["xds"], f"later-{restart}-{number}")
            for kind, names in (("cluster", ()), ("endpoint", refused["cluster"]), ("listener", ())):
                response = later.ask(kind, *names)
                assert later.names(response) == refused[kind], (restart, number, kind)
                later.answer(kind, response, refuse=False)


@pytest.mark.parametrize("size", [4_000_000, 2_000_000, 500_000])
def test_half_messages_of_one_host_do_not_fill_the_memory(plane: Plane, size: int) -> None:
    honest = Proxy(plane.said["xds"], "honest")
    clusters = honest.ask("cluster")
    honest.answer("cluster", clusters, refuse=False)
    before = plane.resident_bytes()
    peak = 0
    clients = [Client(plane.said["xds"]) for _ in range(2)]
    for client in clients:
        with contextlib.suppress(OSError, ProtocolError):  # the server closes it
            for _ in range(120):
                client.send(client.open(ADS), bytes(size - 1), announced=size)
    over_at = time.monotonic() + 8.0
    while time.monotonic() < over_at:
        for client in clients:
            try:
                client.step()
            except (OSError, ProtocolError):
                continue  # the server has closed it
            peak = max(peak, plane.resident_bytes())
    assert peak - before < 240 * MIB, (peak // MIB, before // MIB)
    assert honest.ask("endpoint", *honest.names(clusters)).get(2), "the honest proxy is served"
    plane.get("/readyz")


def padded_message(path: str, size: int) -> bytes:
    """A first message with an unknown field of this size."""
    kind = text(2, TYPES["cluster"]) if path == ADS else b""
    return text(1, node("hostile")) + kind + text(15, bytes(size))


def test_complete_messages_of_idle_streams_are_not_kept(plane: Plane) -> None:
    before = plane.resident_bytes()
    clients = [Client(plane.said["xds"]) for _ in range(2)]
    for client, path in [(client, path) for client in clients for path in (ADS, LRS) for _ in range(40)]:
        stream = client.open(path)
        client.send(stream, padded_message(path, 500_000))
        while not client.sent(stream):
            client.step()
    for client in clients * 20:
        client.step()
    assert plane.resident_bytes() - before < 40 * MIB, "of 80 MB in first messages"
    assert not any(client.ended for client in clients)


def test_refused_messages_leave_no_garbage_behind(plane: Plane) -> None:
    client = Client(plane.said["xds"])
    names = b"".join(text(4, str(one)) for one in range(240_000))
    before = plane.resident_bytes()
    for _ in range(60):
        stream = client.open(ADS)
        client.send(stream, text(1, node("hostile")) + text(2, TYPES["endpoint"]) + text(3, "chat"))
        client.send(stream, text(2, TYPES["endpoint"]) + names)
        while stream not in client.ended:
            client.step()
    assert plane.resident_bytes() - before < 80 * MIB, "of 120 MB in refused messages"


def test_message_of_empty_entries_leaves_others_heard(plane: Plane) -> None:
    clients, streams = [], []
    for name in ("honest", "hostile"):
        proxy = Proxy(plane.said["xds"], name)
        proxy.answer("cluster", proxy.ask("cluster"), refuse=False)
        stream = proxy.client.open(ALS)
        # The identifier: the node, and the name of the log that the listener declares.
        proxy.client.send(stream, text(1, text(1, node(name)) + text(2, "switchgear")) + ENTRY)
        proxy.client.step()
        clients.append(proxy.client)
        streams.append(stream)
    give_up_at = time.monotonic() + LIMIT_S
    while age_s(plane) > LIMIT_S:  # the server learns of the proxy in its next round
        assert time.monotonic() < give_up_at
        clients[0].send(streams[0], ENTRY)
        clients[0].step()
    for size in (2_000_000, 60_000, 2_000):
        hostile = clients[1].open(ALS)
        clients[1].send(hostile, text(1, text(1, node("hostile")) + text(2, "switchgear")) + entries(1))
        for _ in range(3):
            clients[1].send(hostile, entries(size))
        for _ in range(40):
            clients[1].step()
        began_s = time.monotonic()
        clients[0].send(streams[0], ENTRY)
        clients[0].step()
        while age_s(plane) > time.monotonic() - began_s:
            assert time.monotonic() < began_s + 10.0, f"unheard after a message of {size} entries"
            clients[0].step()
    assert streams[0] not in clients[0].ended


ENTRY = text(2, text(1, text(1, text(15, "chat"))))
"""One entry with its upstream cluster."""


def entries(count: int) -> bytes:
    return text(2, b"\x0a\x00" * count)


def age_s(plane: Plane) -> float:
    ages = [
        float(line.rpartition(" ")[2])
        for line in plane.get("/metrics").splitlines()
        if line.startswith("switchgear_telemetry_age_seconds{") and '"honest"' in line and '"access_log"' in line
    ]
    return min(ages, default=float("inf"))


@pytest.mark.parametrize(
    ("path", "message", "seen_cpu_s"),
    [
        (LRS, b"\x12\x00" * 2_000_000, 0.487),
        (LRS, b"\x12\x00" * 1_000_000, 0.243),
        (ALS, text(2, b"\x0a\x00" * 2_000_000), 0.626),
        (ALS, text(2, b"\x0a\x00" * 1_000_000), 0.313),
        (ADS, text(2, TYPES["endpoint"]) + b"".join(text(4, str(one)) for one in range(240_000)), 0.06),
    ],
    ids=["2 M clusters", "1 M clusters", "2 M entries", "1 M entries", "240 000 unsubscribed names"],
)
def test_one_message_costs_far_less_cpu_than_it_did(
    plane: Plane, path: str, message: bytes, seen_cpu_s: float
) -> None:
    proxy = Proxy(plane.said["xds"], "hostile")
    proxy.answer("cluster", proxy.ask("cluster"), refuse=False)
    first = {
        LRS: text(1, node("hostile")),
        ALS: text(1, text(1, node("hostile")) + text(2, "switchgear")),
        ADS: text(1, node("hostile")) + text(2, TYPES["endpoint"]) + text(3, "chat"),
    }[path]
    streams = []
    for _ in range(10):
        streams.append(proxy.client.open(path))
        proxy.client.send(streams[-1], first)
    for _ in range(10):
        proxy.client.step()
    before_s, began_s = plane.cpu_s(), time.monotonic()
    for stream in streams:
        proxy.client.send(stream, message)
    while not all(proxy.client.sent(one) for one in streams) and time.monotonic() < began_s + LIMIT_S / 2:
        proxy.client.step()
    for _ in range(20):
        proxy.client.step()
    plane.get("/readyz")
    assert plane.cpu_s() - before_s < len(streams) * seen_cpu_s / 2


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (LRS, b"\x12\x00" * 2_000_000),
        (ALS, text(2, b"\x0a\x00" * 2_000_000)),
    ],
    ids=["2 M clusters", "2 M entries"],
)
def test_messages_of_two_million_fields_leave_others_served(plane: Plane, path: str, message: bytes) -> None:
    """A new proxy has its clusters while such messages of 4 MB arrive all the time, as soon as without them."""
    proxy = Proxy(plane.said["xds"], "hostile")
    proxy.answer("cluster", proxy.ask("cluster"), refuse=False)
    first = text(1, node("hostile")) if path == LRS else text(1, text(1, node("hostile")) + text(2, "switchgear"))
    sent, over = 0, threading.Event()

    def attack() -> None:
        nonlocal sent
        while not over.is_set():
            client = Client(plane.said["xds"])
            for _ in range(10):
                stream = client.open(path)
                client.send(stream, first)
                client.send(stream, message)
                while not (over.is_set() or client.sent(stream)):
                    client.step()
                sent += 1
            client.socket.close()

    calm_s = [served_s(plane, f"calm-{number}") for number in range(ROUNDS)]
    with ThreadPoolExecutor(1) as threads:
        attacking = threads.submit(attack)
        try:
            flooded_s = []
            for number in range(ROUNDS):
                before = sent
                flooded_s.append(served_s(plane, f"flooded-{number}"))
                give_up_at = time.monotonic() + LIMIT_S
                while sent == before:
                    assert time.monotonic() < give_up_at
                    time.sleep(0.01)
        finally:
            over.set()
        attacking.result()
    assert median(flooded_s) < 4 * median(calm_s) + 0.1, (calm_s, flooded_s)


ROUNDS = 9


def served_s(plane: Plane, name: str) -> float:
    """How long a new proxy waits for its clusters."""
    began_s = time.monotonic()
    assert Proxy(plane.said["xds"], name).ask("cluster")[2]
    return time.monotonic() - began_s
