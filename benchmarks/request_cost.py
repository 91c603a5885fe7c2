"""What a request costs Envoy's worker: our configuration against plain Envoy, by size of the body, in one run.

``plain`` is an Envoy with one route, our retries and no filter of ours. ``fields`` adds the reading of request
fields and our routes. ``served`` is an Envoy that a real control plane configures by ADS, at its defaults: engine
listeners (hops) and access logs as well. ``headers`` and ``served-headers`` are the same with ``requestFields:
headers``, and their requests state the fields. ``sized`` is ``fields`` with tenants that have quotas of tokens, a
route and time limits by size, and deadlines, all stated by its requests. All have one worker. CPU is that of
Envoy's threads; the engine behind the Envoys answers at once. ``--peers`` adds the routers of other projects, for
chats only, which all take; their CPU is that of their process. Bodies differ from one request to the next, in
text, length and order of fields. ``neighbour`` is the longest time of small requests while large ones arrive.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import ResultColumn, option_parser, percentile, publish, result_table
from benchmarks.peers import PEERS, start_peer
from benchmarks.testbed import LIMIT_S, ProcessLauncher, policy_text, until
from chaos.processes import ChildProcess, ChildProcesses, envoy_command, free_ports

CONTESTANTS: Final = ("plain", "fields", "sized", "headers", "served", "served-headers")
BY_HEADERS: Final = frozenset({"headers", "served-headers"})
JUDGED: Final = frozenset({"fields", "headers"})
"""Contestants with a target: the request path alone."""
CONNECTIONS: Final = 4
TARGETS: Final = {"350B": 1.15, "16KB": 1.15, "128KB-chat": 1.5, "1MB-ids": 2.0}
"""Processor time of ``fields`` and ``headers`` over that of ``plain``, at most."""
SIZED_TARGET: Final = 1.05
"""Processor time of ``sized`` over that of ``fields``, at most."""
NEIGHBOUR_TARGET_S: Final = 0.02
"""How much longer than with plain Envoy a small request may wait while a body of 16 MB arrives."""
_BYTES_A_TURN: Final = 30_000_000
_MOST_VARIANTS: Final = 64
_BYTES_OF_VARIANTS: Final = 40_000_000
"""How many different bodies of one size are sent in turn."""
_POOL: Final = "chat"


SIZES: Final = {
    "350B": ("chat", 250),
    "16KB": ("chat", 16_000),
    "128KB-chat": ("chat", 128_000),
    "1MB-ids": ("ids", 150_000),
    "1MB-text": ("text", 1_000_000),
    "16MB": ("ids", 2_000_000),
}
"""Kind of each body, and its mean size: characters of prose, or token ids."""


def bodies(name: str) -> list[bytes]:
    """Different bodies of one kind: prose with code in it, or token ids, as callers send them."""
    first = next(made := _bodies(name))
    count = max(2, min(_MOST_VARIANTS, _BYTES_OF_VARIANTS // len(first)))
    return [first, *itertools.islice(made, count - 1)]


def _bodies(name: str) -> Iterator[bytes]:
    drawn = random.Random(20)
    words = [
        "the",
        "quick",
        "brown",
        "fox",
        "jumps",
        "over",
        "lazy",
        "dog",
        '"quoted"',
        "line\n",
        "f(x)",
        "{a: [1]}",
    ]
    weights = [8] * 8 + [1] * 4

    def prose(size: int) -> str:
        return " ".join(drawn.choices(words, weights, k=size // 6))

    def shuffled(document: Mapping[str, Any]) -> bytes:
        items = [*document.items()]
        drawn.shuffle(items)
        return json.dumps(dict(items)).encode()

    def chat(size: int) -> bytes:
        messages = [{"role": "user", "content": prose(min(size, 2000))} for _ in range(max(1, size // 2000))]
        return shuffled({"model": "tiny", "messages": messages, "stream": False, "max_tokens": 16})

    def ids(count: int) -> bytes:
        return shuffled({"model": "tiny", "prompt": drawn.choices(range(100_000), k=count)})

    def text(size: int) -> bytes:
        return shuffled({"model": "tiny", "prompt": prose(size)})

    kind, size = SIZES[name]
    make = {"chat": chat, "ids": ids, "text": text}[kind]
    while True:
        yield make(round(size * drawn.uniform(0.9, 1.1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRow:
    """Medians over the turns; ``cpu_us`` is of Envoy for one request, ``rss_mb`` its largest memory.

    ``ratio`` is to ``plain``; ``of_fields`` to ``fields``, the median over turns, since both have each turn.
    """

    body: str
    contestant: str
    cpu_us: float
    ratio: float
    of_fields: float
    p50_ms: float
    p99_ms: float
    neighbour_ms: float
    rss_mb: float


@dataclass(slots=True, kw_only=True)
class _Turn:
    cpu_us: float
    took_s: list[float]
    neighbour_s: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Envoy:
    """A contestant; ``stated``: requests to it have the fields in headers. ``chats``: it takes no other bodies.

    ``tenants``: its requests name a tenant and a deadline.
    """

    child: ChildProcess
    host: str
    port: int
    stated: bool
    chats: bool = False
    tenants: bool = False


_ANSWER: Final = (
    b'{"id":"a","object":"chat.completion","created":1,"model":"tiny","choices":[{"index":0,"text":"a",'
    b'"message":{"role":"assistant","content":"a"},"finish_reason":"length"}],'
    b'"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
)
_SMALL: Final = b'{"model":"tiny","messages":[{"role":"user","content":"a"}]}'


class _Sink(asyncio.Protocol):
    """An engine that answers at once; its counters move, so that probes find it healthy."""

    answered = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.head, self.left, self.tail, self.chunked = bytearray(), -1, b"", False

    def data_received(self, data: bytes) -> None:
        while data:
            if self.left < 0:
                self.head += data
                end = self.head.find(b"\r\n\r\n")
                if end < 0:
                    return
                head, data = bytes(self.head[:end]).lower(), bytes(self.head[end + 4 :])
                self.head = bytearray()
                self.path = head.split(b" ", 2)[1]
                lengths = [line for line in head.split(b"\r\n") if line.startswith(b"content-length:")]
                self.chunked = b"transfer-encoding: chunked" in head
                self.left, self.tail = int(lengths[0].partition(b":")[2]) if lengths else 0, b""
            taken = data if self.chunked else data[: self.left]
            data = b"" if self.chunked else data[self.left :]
            self.left -= 0 if self.chunked else len(taken)
            self.tail = (self.tail + taken)[-5:]
            if self.tail == b"0\r\n\r\n" if self.chunked else self.left == 0:
                self.left = -1
                self._answer()

    def _answer(self) -> None:
        kind, body = b"application/json", _ANSWER
        if self.path.startswith(b"/metrics"):
            kind = b"text/plain"
            body = "".join(
                f"vllm:{name} {value}\n"
                for name, value in {
                    "num_requests_running": 0,
                    "num_requests_waiting": 0,
                    "generation_tokens_total": _Sink.answered,
                    "prompt_tokens_total": _Sink.answered,
                    "kv_cache_usage_perc": 0,
                }.items()
            ).encode()
        else:
            _Sink.answered += 1
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (kind, len(body), body)
        )


async def _serve_sink() -> None:
    loop = asyncio.get_running_loop()
    # Routers that choose by load want two engines.
    first, second = [await loop.create_server(_Sink, "127.0.0.1", 0) for _ in range(2)]
    port, other_port = (one.sockets[0].getsockname()[1] for one in (first, second))
    sys.stdout.write(json.dumps({"port": port, "other_port": other_port}) + "\n")
    sys.stdout.flush()
    await first.serve_forever()


_TENANTS: Final = {
    "header": "x-tenant",
    "trustHeader": True,
    "named": [{"name": f"team-{number}", "requests": 1_000_000, "tokens": 1_000_000_000} for number in range(10)],
    "others": {"requests": 1_000_000, "tokens": 1_000_000_000},
}
_SIZE_LIMITS: Final = {
    "timeouts": {"nonStreaming": {"total": "15m", "byTokens": {"enabled": True, "perToken": "100ms"}}},
    "retries": {"large": {"tokensAbove": 8000, "attempts": 1}},
}


def _policies(sink: int, port: int, source: str, *, sized: bool) -> str:
    listener: dict[str, Any] = {"port": port, "address": "127.0.0.1", "requestFields": source}
    if sized:
        listener |= {"tenants": _TENANTS, "deadline": {"header": "x-deadline-ms", "form": "ms"}}
    match = {"model": "tiny"}
    route = {"listener": listener, "match": match, "maxBodyBytes": 20_000_000, "pools": [{"pool": _POOL}]}
    texts = [
        policy_text(
            {
                "EnginePool": {
                    "model": "tiny",
                    "endpoints": [{"name": "sink", "address": "127.0.0.1", "port": sink}],
                },
                "ModelRoute": route,
            },
            _POOL,
        )
    ]
    if sized:
        long = {**route, "match": {**match, "tokensAbove": 4000}}
        texts += [policy_text({"ModelRoute": long}, "long")]
        texts += [policy_text({"ResiliencePolicy": _SIZE_LIMITS}, "default")]
    return "\n---\n".join(texts)


def _static(policies: Path) -> dict[str, Any]:
    """Our configuration for an Envoy without a control plane, without the access logs that need one."""
    command = [sys.executable, "-m", "xds_server", "translate", "-f", str(policies), "-o", "static"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=LIMIT_S)
    bootstrap: dict[str, Any] = json.loads(done.stdout)
    manager = _manager(bootstrap)
    manager.pop("access_log")
    manager["http_filters"][-1]["typed_config"].pop("upstream_log")
    return bootstrap


def _plain(bootstrap: dict[str, Any]) -> dict[str, Any]:
    """The same without our filters, and with the one route that takes all."""
    manager = _manager(bootstrap)
    manager["http_filters"] = manager["http_filters"][-1:]
    host = manager["route_config"]["virtual_hosts"][0]
    route = next(one for one in host["routes"] if one["name"] == f"{_POOL}/non-streaming")
    host["routes"] = [{**route, "match": {"prefix": "/"}}]
    return bootstrap


def _manager(bootstrap: dict[str, Any]) -> dict[str, Any]:
    chain = bootstrap["static_resources"]["listeners"][0]["filter_chains"][0]
    manager: dict[str, Any] = chain["filters"][0]["typed_config"]
    return manager


def _moved(bootstrap: dict[str, Any], port: int) -> str:
    """The bootstrap with its listener on this port of the loopback."""
    address = {"address": "127.0.0.1", "port_value": port}
    bootstrap["static_resources"]["listeners"][0]["address"]["socket_address"] = address
    return json.dumps(bootstrap)


def _cpu_us(child: ChildProcess) -> float:
    """Processor time that all threads of a child have had."""
    tasks = Path(f"/proc/{child.pid}/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[0]) for path in tasks) / 1e3


def _peak_mb(child: ChildProcess) -> float:
    status = Path(f"/proc/{child.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


async def _ask(envoy: _Envoy, requests: Iterator[bytes], count: int, took_s: list[float]) -> None:
    reader, writer = await asyncio.open_connection(envoy.host, envoy.port)
    try:
        for request in itertools.islice(requests, count):
            began_s = time.monotonic()
            writer.write(request)
            await writer.drain()
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if b" 200 " not in head[:20]:
                raise RuntimeError(f"the proxy answered {head.splitlines()[0]!r}")
            length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.partition(b":")[2]))
            took_s.append(time.monotonic() - began_s)
    finally:
        writer.close()


def _requests(bodies: Sequence[bytes], envoy: _Envoy) -> Iterator[bytes]:
    """Requests to this contestant with these bodies, again and again."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    if envoy.tenants:
        head += b"x-tenant: team-3\r\nx-deadline-ms: 60000\r\n"
    if envoy.stated:
        head += b"x-switchgear-model: tiny\r\nx-switchgear-stream: false\r\nx-switchgear-max-tokens: 16\r\n"
    return itertools.cycle([head + b"content-length: %d\r\n\r\n" % len(body) + body for body in bodies])


async def _turn(envoy: _Envoy, bodies: Sequence[bytes]) -> _Turn:
    """As many requests as fit into a turn, then a few with a neighbour that sends small ones."""
    requests, small = (_requests(some, envoy) for some in (bodies, [_SMALL]))
    count = max(2, min(400, _BYTES_A_TURN // len(bodies[0]) // CONNECTIONS))
    took_s: list[float] = []
    began_us = _cpu_us(envoy.child)
    await asyncio.gather(*(_ask(envoy, requests, count, took_s) for _ in range(CONNECTIONS)))
    cpu_us = (_cpu_us(envoy.child) - began_us) / len(took_s)
    neighbour_s: list[float] = []
    large = asyncio.create_task(_ask(envoy, requests, 3, []))
    while not large.done():
        await _ask(envoy, small, 1, neighbour_s)
    await large
    return _Turn(cpu_us=cpu_us, took_s=took_s, neighbour_s=neighbour_s)


async def measure(names: Sequence[str], turns: int, *, peers: bool = False) -> list[CostRow]:
    """All rows; contestants take turns, so that a noisy machine is noisy to all."""
    with tempfile.TemporaryDirectory() as scratch:
        async with ChildProcesses() as processes:
            folder = Path(scratch)
            started = await _start(folder, processes, peers=peers)
            rows = []
            for name in names:
                sent = bodies(name)
                chat = SIZES[name][0] == "chat"
                envoys = {one: envoy for one, envoy in started.items() if chat or not envoy.chats}
                turned: dict[str, list[_Turn]] = {one: [] for one in envoys}
                for _, (contestant, envoy) in itertools.product(range(turns), envoys.items()):
                    turned[contestant].append(await _turn(envoy, sent))
                plain_us = percentile([turn.cpu_us for turn in turned["plain"]], 50)
                for contestant, some in turned.items():
                    cpu_us = percentile([turn.cpu_us for turn in some], 50)
                    took_s = [one for turn in some for one in turn.took_s]
                    rows.append(
                        CostRow(
                            body=name,
                            contestant=contestant,
                            cpu_us=cpu_us,
                            ratio=cpu_us / plain_us,
                            of_fields=percentile(
                                [
                                    own.cpu_us / base.cpu_us
                                    for own, base in zip(some, turned["fields"], strict=True)
                                ],
                                50,
                            ),
                            p50_ms=1e3 * percentile(took_s, 50),
                            p99_ms=1e3 * percentile(took_s, 99),
                            neighbour_ms=1e3 * percentile([max(turn.neighbour_s) for turn in some], 50),
                            rss_mb=_peak_mb(envoys[contestant].child),
                        )
                    )
            return rows


async def _start(folder: Path, processes: ChildProcesses, *, peers: bool) -> dict[str, _Envoy]:
    sink = await processes.start(
        "sink", [sys.executable, "-m", "benchmarks.request_cost", "--sink"], ready_within_s=LIMIT_S
    )
    launcher = ProcessLauncher(folder, processes)
    envoys, ports = {}, free_ports(2 * len(CONTESTANTS))
    for number, contestant in enumerate(CONTESTANTS):
        stated, port, admin = contestant in BY_HEADERS, ports[2 * number], ports[2 * number + 1]
        policies = folder / contestant
        policies.mkdir()
        sized, source = contestant == "sized", "headers" if stated else "body"
        (policies / "chat.yaml").write_text(_policies(sink.ready["port"], port, source, sized=sized))
        if contestant.startswith("served"):
            server = await launcher.start_server(f"server-{contestant}", ["-f", str(policies)])
            xds = int(server.ready["xds"].rpartition(":")[2])
            child, host = await launcher.start_envoy(number, contestant, [xds], admin), f"127.0.0.{number + 1}"
        else:
            bootstrap = _static(policies)
            path = folder / f"{contestant}.json"
            path.write_text(_moved(_plain(bootstrap) if contestant == "plain" else bootstrap, port))
            child, host = await processes.start(contestant, envoy_command(path)), "127.0.0.1"
        envoys[contestant] = _Envoy(child=child, host=host, port=port, stated=stated, tenants=sized)
    for peer in PEERS.values() if peers else ():
        child, url = await start_peer(
            processes, folder, peer, [sink.ready["port"], sink.ready["other_port"]], "tiny"
        )
        host, _, own = url.removeprefix("http://").partition(":")
        envoys[peer.name] = _Envoy(child=child, host=host, port=int(own), stated=False, chats=True)
    for contestant, envoy in envoys.items():

        async def answers(envoy: _Envoy = envoy) -> bool:
            try:
                await _ask(envoy, _requests([_SMALL], envoy), 1, [])
            except (OSError, RuntimeError, asyncio.IncompleteReadError):
                return False
            return True

        await until(answers, f"{contestant} serves")
    return envoys


COLUMNS: Final[Sequence[ResultColumn[CostRow]]] = (
    ResultColumn(heading="body", cell=lambda row: row.body, left=True),
    ResultColumn(heading="proxy", cell=lambda row: row.contestant, left=True),
    ResultColumn(heading="CPU", cell=lambda row: f"{row.cpu_us:.0f} us"),
    ResultColumn(heading="of plain", cell=lambda row: f"{row.ratio:.2f}"),
    ResultColumn(heading="of fields", cell=lambda row: f"{row.of_fields:.2f}"),
    ResultColumn(
        heading="target", cell=lambda row: f"{TARGETS.get(row.body, '')}" if row.contestant in JUDGED else ""
    ),
    ResultColumn(heading="p50", cell=lambda row: f"{row.p50_ms:.1f} ms"),
    ResultColumn(heading="p99", cell=lambda row: f"{row.p99_ms:.1f} ms"),
    ResultColumn(heading="neighbour", cell=lambda row: f"{row.neighbour_ms:.1f} ms"),
    ResultColumn(heading="peak memory", cell=lambda row: f"{row.rss_mb:.0f} MB"),
)


def missed(rows: Sequence[CostRow], bound: float | None = None) -> list[str]:
    """Envoys and bodies that miss a target; with ``bound`` only those whose ratio is above it."""
    judged = [row for row in rows if row.contestant in JUDGED]
    if bound is not None:
        return [f"{row.contestant} {row.body}" for row in judged if row.ratio > bound]
    sized = [f"sized {row.body}" for row in rows if row.contestant == "sized" and row.of_fields > SIZED_TARGET]
    plain_ms = {row.body: row.neighbour_ms for row in rows if row.contestant == "plain"}
    return sized + [
        f"{row.contestant} {row.body}"
        for row in judged
        if row.ratio > TARGETS.get(row.body, 1e9)
        or (row.body == "16MB" and row.neighbour_ms > plain_ms[row.body] + 1e3 * NEIGHBOUR_TARGET_S)
    ]


def main(argv: Sequence[str]) -> int:
    """Measure, print, write; 1 when a target is missed."""
    parser = option_parser("request_cost", __doc__)
    parser.add_argument("--turns", type=int, default=7, help="per body and Envoy")
    parser.add_argument("--body", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--bound", type=float, metavar="RATIO", help="fail above this ratio, not at the targets")
    parser.add_argument("--peers", action="store_true", help="also the routers of other projects")
    parser.add_argument("--sink", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.sink:
        asyncio.run(_serve_sink())
        return 0
    rows = asyncio.run(measure(options.body, options.turns, peers=options.peers))
    caption = f"{CONNECTIONS} connections, one worker each, {os.cpu_count()} cores"
    table = result_table("what a request costs", COLUMNS, rows, caption=caption)
    answer = {
        "targets": TARGETS,
        "sized_target": SIZED_TARGET,
        "rows": [asdict(row) for row in rows],
        "missed": missed(rows, options.bound),
    }
    return publish([table], options.json, answer, met=not answer["missed"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
