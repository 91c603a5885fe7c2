"""Many proxies that report their calls, in one process: ``python -m benchmarks.signals_peers PORT KIND ...``.

Each has a connection of its own, as an Envoy does. What they send is made once, with the sizes seen of a real
Envoy: 0.6 KB an entry, 61 KB of node in every load report.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterator
from typing import Any, Final

import grpc

from xds_server.telemetry import access_log_service, load_report_service
from xds_server.translate.access_log_config import ATTEMPT_HEADER, LOG_NAME

ENGINES: Final = 1_000
POOL: Final = "chat"
EXTENSIONS: Final = 516
"""Names an Envoy 1.40 has compiled in; they make its node what it is."""


def place(engine: int) -> tuple[str, int]:
    """Where an engine stands."""
    return f"10.0.{engine >> 8}.{engine & 255}", 8000


def _node(node: Any, name: str) -> Any:
    node.id = name
    node.extensions.extend(bytes([65 + n % 26]) * 116 for n in range(EXTENSIONS))
    return node


def entry(entries: Any, engine: int, rng: random.Random) -> None:
    """One attempt, with everything a real Envoy writes into it."""
    one = entries.add()
    common = one.common_properties
    common.access_log_type = 9
    common.start_time.GetCurrentTime()
    for field, seconds in (
        ("duration", 0.5),
        ("time_to_last_rx_byte", 0.001),
        ("time_to_first_upstream_tx_byte", 0.001),
        ("time_to_last_upstream_tx_byte", 0.001),
        ("time_to_first_upstream_rx_byte", 0.2),
        ("time_to_last_upstream_rx_byte", 0.5),
    ):
        getattr(common, field).FromMicroseconds(round(seconds * rng.uniform(0.5, 1.5) * 1e6))
    address = common.upstream_remote_address.socket_address
    address.address, address.port_value = place(engine)
    common.upstream_cluster = POOL
    common.route_name = "chat/non-streaming"
    common.stream_id = f"{rng.getrandbits(128):032x}"
    common.upstream_wire_bytes_sent = 1200
    common.upstream_wire_bytes_received = 3400
    request = one.request
    request.request_method = 3
    request.scheme, request.authority, request.path = "http", "chat.example.internal:8080", "/v1/chat/completions"
    request.user_agent = "OpenAI/Python 1.99.0"
    request.request_id = f"{rng.getrandbits(128):032x}"
    request.request_headers_bytes, request.request_body_bytes = 600, 900
    request.request_headers[ATTEMPT_HEADER] = "1"
    failed = rng.random() < 0.02
    one.response.response_code.value = 500 if failed else 200
    one.response.response_headers_bytes, one.response.response_body_bytes = 200, 3200
    one.response.response_code_details = "via_upstream"
    # On the wire although the server does not decode it.
    common.downstream_remote_address = common.downstream_direct_remote_address = b"\x0a\x10" + b"\x12" * 16
    common.downstream_local_address = common.upstream_local_address = b"\x0a\x10" + b"\x12" * 16


def log_messages(name: str, entries: int, rng: random.Random) -> Iterator[bytes]:
    """The first message of a stream, then the same few, repeated without end."""
    made = []
    for number in range(4):
        message = access_log_service.AccessLogs()
        if number == 0:
            _node(message.identifier.node, name)
            message.identifier.log_name = LOG_NAME
        for _ in range(entries):
            entry(message.http_logs.log_entry, rng.randrange(ENGINES), rng)
        made.append(message.SerializeToString())
    yield made[0]
    while True:
        yield from made[1:]


def load_messages(name: str, engines: int, rng: random.Random) -> Iterator[bytes]:
    """Load reports, each with the whole node."""
    node = _node(load_report_service.Node(), name).SerializeToString()
    asking = load_report_service.LoadReport()
    asking.node = node
    yield asking.SerializeToString()
    mine = [rng.randrange(ENGINES) for _ in range(engines)]
    while True:
        report = load_report_service.LoadReport()
        report.node = node
        cluster = report.cluster_stats.add()
        cluster.cluster_name = POOL
        locality = cluster.upstream_locality_stats.add()
        locality.locality.zone = "a"
        for engine in mine:
            one = locality.upstream_endpoint_stats.add()
            address = one.address.socket_address
            address.address, address.port_value = place(engine)
            one.total_requests_in_progress = rng.randrange(4)
            one.total_issued_requests = rng.randrange(4)
        yield report.SerializeToString()


async def _tell(port: int, kind: str, name: str, size: int, interval_s: float) -> None:
    rng = random.Random(name)
    messages = (log_messages if kind == "logs" else load_messages)(name, size, rng)
    method = access_log_service.METHOD if kind == "logs" else load_report_service.METHOD
    async with grpc.aio.insecure_channel(
        f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        call: Any = channel.stream_stream(method)()
        await asyncio.sleep(rng.uniform(0, 2.0))
        due_s = asyncio.get_running_loop().time()
        for message in messages:
            await call.write(message)
            due_s += interval_s
            await asyncio.sleep(max(0.0, due_s - asyncio.get_running_loop().time()))


async def _all(port: int, kind: str, proxies: int, size: int, interval_s: float) -> None:
    await asyncio.gather(
        *(_tell(port, kind, f"proxy-{n}", size, interval_s) for n in range(proxies)), return_exceptions=True
    )


if __name__ == "__main__":
    _port, _kind, _proxies, _size, _interval = sys.argv[1:]
    asyncio.run(_all(int(_port), _kind, int(_proxies), int(_size), float(_interval)))
