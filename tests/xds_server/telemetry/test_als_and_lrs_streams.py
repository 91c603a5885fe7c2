"""The two services over a real port: counts, responses, and misbehaving peers."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from xds_server.auth.stream_limits import StreamLimits
from xds_server.metrics.metric_registry import Metrics
from xds_server.model.pool_traffic import STALE_S
from xds_server.publish.ads_service import MAX_REQUEST_BYTES
from xds_server.telemetry import Telemetry, access_log_service, load_report_service
from xds_server.telemetry.entry_budget import EntryBudget
from xds_server.telemetry.load_report_service import INTERVALS_S, MOST, REPORTS_PER_S, interval_s
from xds_server.telemetry.pool_directory import EMPTY_DIRECTORY
from xds_server.telemetry.stream_service import StreamService, TelemetryLimitError
from xds_server.translate.access_log_config import ATTEMPT_HEADER, LOG_NAME
from xds_server.transport import H2Server
from xds_server.wire.varint import delimited, varint

LIMIT_S = 60.0
NOW_S = 1000.0
"""Time stands still in a rig: counts do not expire while a busy machine does something else."""
EVERY_FLAG = "upstream_connection_failure"


def log(
    *, node: str = "", name: str = LOG_NAME, calls: int = 1, code: int = 200, attempt: str = "1", port: int = 8000,
    flag: str = "", kind: int = 9, route: str = "talk/non-streaming", cluster: str = "chat", whole: bool = True,
) -> bytes:  # fmt: skip
    message = access_log_service.AccessLogs()
    if node:
        message.identifier.node.id = node
        message.identifier.log_name = name
    for _ in range(calls):
        entry = message.http_logs.log_entry.add()
        common = entry.common_properties
        common.access_log_type = kind
        address = common.upstream_remote_address.socket_address
        address.address, address.port_value = "10.0.0.1", port
        common.upstream_cluster, common.route_name = cluster, route
        common.duration.FromMilliseconds(500)
        if flag:
            setattr(common.response_flags, flag, True)
        if code:
            if whole:
                common.time_to_last_upstream_rx_byte.FromMilliseconds(500)
            entry.response.response_code.value = code
        entry.request.request_headers[ATTEMPT_HEADER] = attempt
    return bytes(message.SerializeToString())


def report(node: str = "p1", *, cluster: str = "chat", in_progress: int = 1, issued: int = 1) -> bytes:
    message = load_report_service.LoadReport()
    message.node = load_report_service.Node(id=node).SerializeToString()
    found = message.cluster_stats.add(cluster_name=cluster)
    one = found.upstream_locality_stats.add().upstream_endpoint_stats.add()
    address = one.address.socket_address
    address.address, address.port_value = "10.0.0.1", 8000
    one.total_requests_in_progress, one.total_issued_requests = in_progress, issued
    return bytes(message.SerializeToString())


@dataclass
class Rig:
    telemetry: Telemetry
    metrics: Metrics
    port: int
    news: list[float]
    channel: grpc.aio.Channel
    stop: Callable[[], Any]

    def stream(self, method: str) -> Any:
        return self.channel.stream_stream(method)()

    def traffic(self) -> Any:
        return self.telemetry.traffic(NOW_S).get("chat")

    def errors(self, signal: str, flaw: str) -> float | None:
        return self.metrics.registry.get_sample_value(
            "switchgear_telemetry_errors_total", {"signal": signal, "flaw": flaw}
        )


async def until(condition: Callable[[], object], what: str) -> None:
    give_up_at = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < give_up_at, f"not within {LIMIT_S} s: {what}"
        await asyncio.sleep(0.005)


@asynccontextmanager
async def listening(transport: str, services: list[StreamService]) -> AsyncIterator[tuple[int, Callable[[], Any]]]:
    """The port of these services, and what ends their streams as a stopping server does."""
    if transport == "h2":
        own = H2Server([one.rpc_service() for one in services])
        try:
            yield await own.start(), own.stop
        finally:
            await own.stop()
        return

    async def stop() -> None:
        for one in services:
            one.stop()

    server = grpc.aio.server(handlers=services)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port, stop
    finally:
        await stop()
        await server.stop(None)


@pytest.fixture(params=["grpc", "h2"])
async def rig(policies, request) -> AsyncIterator[Rig]:
    metrics, news = Metrics(), []
    telemetry = Telemetry(metrics, lambda: news.append(NOW_S), clock=lambda: NOW_S)
    telemetry.watch(policies)
    async with (
        listening(request.param, telemetry._intakes) as (port, stop),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield Rig(telemetry=telemetry, metrics=metrics, port=port, news=news, channel=channel, stop=stop)
        telemetry.stop()


async def test_als_retried_shed_answers_count_as_shed(rig):
    stream = rig.stream(access_log_service.METHOD)
    # Envoy drops the body of an answer that it retries.
    await stream.write(log(node="p1", code=503, whole=False))
    await stream.write(log(code=503, attempt="2"))
    await stream.write(log(code=0, attempt="3"))
    await until(lambda: rig.traffic() and rig.traffic().engines["e0"].neutral == 3, "the entries arrive")
    assert rig.traffic().engines["e0"].shed == 2
    stream.cancel()


async def test_als_attempts_are_counted_by_engine_and_proxy(rig):
    stream = rig.stream(access_log_service.METHOD)
    await stream.write(log(node="p1", calls=3))
    await stream.write(log(code=500, port=8001))  # only the first message names the node
    await stream.write(log(code=0, flag=EVERY_FLAG, port=8001, attempt="2"))
    await until(lambda: rig.traffic() and "e1" in rig.traffic().engines, "the entries arrive")
    await until(lambda: rig.traffic().engines["e1"].failed == 2, "both failures")
    traffic = rig.traffic()
    assert traffic.engines["e0"].succeeded == 3
    assert set(traffic.proxies) == {"p1"}
    assert traffic.proxies["p1"].retries_per_s > 0
    await until(lambda: rig.news, "a listener is called")
    assert set(rig.telemetry.last_signals_s()["p1"]) == {"access_log"}


async def test_foreign_clusters_are_ignored(rig):
    stream = rig.stream(access_log_service.METHOD)
    await stream.write(log(node="p1", cluster="elsewhere"))
    await stream.write(log(port=9999))
    await stream.write(log(kind=4))
    await stream.write(log())
    await until(rig.traffic, "the one that counts")
    assert {name: one.succeeded for name, one in rig.traffic().engines.items()} == {"e0": 1}


async def test_lrs_load_reports_are_requested_and_counted(rig):
    stream = rig.stream(load_report_service.METHOD)
    await stream.write(report(in_progress=9))
    asked = load_report_service.ReportOrder.FromString(await stream.read())
    assert (asked.send_all_clusters, asked.report_endpoint_granularity) == (True, True)
    assert asked.load_reporting_interval.ToMilliseconds() == 250
    assert rig.traffic() is None, "the first message only subscribes"
    await stream.write(report(in_progress=4))
    await until(rig.traffic, "the report arrives")
    assert rig.traffic().engines["e0"].in_flight == 4


async def test_load_of_an_ended_stream_counts_until_stale(rig):
    stream = rig.stream(load_report_service.METHOD)
    await stream.write(report())
    await stream.write(report(in_progress=4))
    await until(rig.traffic, "the report arrives")
    stream.cancel()
    await until(lambda: rig.telemetry.proxies() == 0, "the stream ends")
    assert rig.traffic().engines["e0"].in_flight == 4
    assert rig.telemetry.traffic(NOW_S + STALE_S + 1.0) == {}


@pytest.mark.parametrize(
    ("method", "first", "flaw"),
    [
        (access_log_service.METHOD, b"\xff\xff\xff", "garbage"),
        (access_log_service.METHOD, log(), "nameless"),
        (access_log_service.METHOD, b"", "nameless"),
        (access_log_service.METHOD, log(node="n" * 5000), "nameless"),
        (access_log_service.METHOD, log(node="p1", name="foreign-log"), "foreign"),
        (load_report_service.METHOD, b"\xff\xff\xff", "garbage"),
        (load_report_service.METHOD, b"", "nameless"),
        (load_report_service.METHOD, report(node=""), "nameless"),
    ],
)
async def test_invalid_message_ends_only_its_stream(rig, method, first, flaw):
    well = rig.stream(access_log_service.METHOD)
    await well.write(log(node="p1"))
    stream = rig.stream(method)
    await stream.write(first)
    assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT
    signal = "access_log" if method == access_log_service.METHOD else "load_report"
    assert rig.errors(signal, flaw) == 1
    await well.write(log())
    await until(lambda: rig.traffic() and rig.traffic().engines["e0"].succeeded == 2, "the other continues")


async def test_impossible_numbers_end_the_stream(rig):
    stream = rig.stream(load_report_service.METHOD)
    await stream.write(report())
    await stream.write(report(in_progress=MOST + 1))
    await stream.read()
    assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert rig.errors("load_report", "absurd") == 1
    assert rig.traffic() is None


async def test_telemetry_of_an_unknown_node_is_ignored(rig):
    rig.telemetry.connected(["p1"])
    strange, known = rig.stream(load_report_service.METHOD), rig.stream(load_report_service.METHOD)
    await strange.write(report(node="rogue"))
    await strange.read()
    await strange.write(report(node="rogue"))
    await until(lambda: rig.errors("load_report", "stranger"), "it is judged")
    assert rig.telemetry.proxies() == 0
    await known.write(report())
    await known.read()
    await known.write(report())
    await known.write(report())
    await until(lambda: rig.telemetry.proxies() == 1, "the known one is counted")
    strange.cancel()
    known.cancel()
    await until(lambda: rig.telemetry.proxies() == 0, "both have ended, and one was counted, once")


@pytest.mark.parametrize("transport", ["grpc", "h2"])
@pytest.mark.parametrize(("first_message_s", "code", "flaw"), [
    (3600.0, grpc.StatusCode.RESOURCE_EXHAUSTED, "crowd"), (3600.0, grpc.StatusCode.RESOURCE_EXHAUSTED, "host"),
    (0.05, grpc.StatusCode.INVALID_ARGUMENT, "silent"),
])  # fmt: skip
async def test_streams_are_limited_and_must_start_in_time(transport, first_message_s, code, flaw):
    flaws, sat = [], []

    def sit(identities, _host):
        sat.append(identities)
        return access_log_service.AccessLogHandler(Telemetry(Metrics()), lambda _bad: None, identities)

    limits = StreamLimits(
        first_message_s=first_message_s, **{"streams_per_host" if flaw == "host" else "streams": 1}
    )
    intake = StreamService(
        access_log_service.METHOD, sit, lambda flaw, _host: flaws.append(flaw), max_bytes=1000, limits=limits
    )
    async with (
        listening(transport, [intake]) as (port, _stop),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        silent = channel.stream_stream(access_log_service.METHOD)()
        await until(lambda: sat, "it is there")
        refused = channel.stream_stream(access_log_service.METHOD)() if flaw != "silent" else silent
        assert await asyncio.wait_for(refused.code(), LIMIT_S) is code
        assert flaws == [flaw]
        silent.cancel()
        await until(lambda: not intake._crowd._all, "there is room again")


async def test_excess_als_entries_are_dropped_and_counted(rig, monkeypatch):
    monkeypatch.setattr(rig.telemetry, "_budget", EntryBudget(per_s=50.0))
    stream = rig.stream(access_log_service.METHOD)
    await stream.write(log(node="p1", calls=400))
    for _ in range(40):
        await stream.write(log(calls=400))
    name, labels = "switchgear_telemetry_dropped_total", {"signal": "access_log"}
    await until(lambda: rig.metrics.registry.get_sample_value(name, labels), "something is dropped")
    await until(rig.traffic, "what came first is counted")


async def test_dropped_als_messages_are_charged_more_than_they_cost(rig, monkeypatch):
    monkeypatch.setattr(rig.telemetry, "_budget", EntryBudget(per_s=50.0))
    handler = access_log_service.AccessLogHandler(rig.telemetry, lambda _bad: None, (), "h")
    handler.take(log(node="p1", calls=400), NOW_S)
    assert handler.price == 1.0
    handler.take(log(calls=400), NOW_S)
    assert handler.price == access_log_service.UNREAD_PRICE
    charged: list[float] = []

    class Costly:
        node, price = "p1", 4.0

        def take(self, _data, _now_s):
            over_at_s = time.thread_time() + 0.005
            while time.thread_time() < over_at_s:
                pass

    intake, _ = rig.telemetry._intakes
    monkeypatch.setattr(intake._limits.pacer, "spend", lambda _host, _node, cpu_s, _now_s: charged.append(cpu_s))
    intake._take(Costly(), "h", b"")
    assert charged[0] >= 4.0 * 0.005


def test_lrs_reporting_interval_grows_with_proxies():
    assert interval_s(0) == interval_s(3) == INTERVALS_S[0]
    for proxies in (1, 50, 100, 125, 126, 400, 1000):
        assert proxies / interval_s(proxies) <= REPORTS_PER_S
    assert interval_s(100_000) * 2 <= STALE_S


async def test_stopping_server_ends_telemetry_streams(rig):
    stream = rig.stream(access_log_service.METHOD)
    await stream.write(log(node="p1"))
    await until(rig.traffic, "it is heard")
    await rig.stop()
    assert await stream.code() is grpc.StatusCode.OK


async def test_telemetry_age_and_sampling_ratio_are_exposed(rig):
    stream = rig.stream(access_log_service.METHOD)
    await stream.write(log(node="p1"))
    await until(rig.traffic, "it is heard")
    rig.telemetry.connected(["p1"])
    found = {family.name: family for family in rig.telemetry.families()}
    (age,) = found["switchgear_telemetry_age_seconds"].samples
    assert age.labels == {"node": "p1", "signal": "access_log"}
    assert age.value >= 0
    assert found["switchgear_telemetry_sampling_ratio"].samples[0].value == 1.0


async def test_rejected_requests_are_not_demand(rig):
    stream = rig.stream(access_log_service.METHOD)
    await stream.write(log(node="p1", code=400, calls=50))
    await stream.write(log(code=429))
    await until(lambda: rig.traffic() and rig.traffic().engines["e0"].neutral == 51, "all entries")
    await stream.write(log(code=200))
    await until(lambda: rig.traffic().engines["e0"].succeeded == 1, "the last entry")
    proxy = rig.traffic().proxies["p1"]
    # Two of 52 asked for work: the rate is two calls over the rate window.
    assert 0 < sum(proxy.arrivals_per_s.values()) <= 2 / 0.5


async def test_telemetry_of_disconnected_nodes_does_not_count(rig):
    rig.telemetry.connected(["p1"])
    logs, loads = rig.stream(access_log_service.METHOD), rig.stream(load_report_service.METHOD)
    await logs.write(log(node="rogue", code=500, calls=100))
    await loads.write(report("rogue"))
    await loads.read()
    await loads.write(report("rogue", in_progress=1000))
    await until(lambda: rig.errors("access_log", "stranger") == 1, "the stranger's log")
    await until(lambda: rig.errors("load_report", "stranger") == 1, "the stranger's load")
    assert rig.traffic() is None
    friend = rig.stream(access_log_service.METHOD)
    await friend.write(log(node="p1"))
    await until(lambda: rig.traffic() and rig.traffic().engines["e0"].succeeded == 1, "the friend's log")
    assert rig.traffic().engines["e0"].failed == 0


async def test_telemetry_identity_must_match_the_mtls_identity(policies):
    asked = []

    def speaks_for(node, identities):
        asked.append((node, identities))
        return (lambda _pool: True) if identities == ("spiffe://lab/p1",) else None

    metrics = Metrics()
    telemetry = Telemetry(metrics, speaks_for=speaks_for)
    telemetry.watch(policies)
    telemetry.connected({"p1"})
    for identities, counted in ((("spiffe://lab/other",), 0), ((), 0), (("spiffe://lab/p1",), 3)):
        sitting = access_log_service.AccessLogHandler(telemetry, lambda _bad: None, identities)
        sitting.take(log(node="p1", calls=3), time.monotonic())
        found = telemetry.traffic_store.traffic(time.monotonic()).get("chat")
        assert (0 if found is None else found.engines["e0"].succeeded) == counted
        loads = load_report_service.LoadReportHandler(telemetry, identities)
        loads.take(report(in_progress=1), time.monotonic())
        loads.take(report(in_progress=1), time.monotonic())
    assert {node for node, _ in asked} == {"p1"}
    for signal in ("access_log", "load_report"):
        value = metrics.registry.get_sample_value(
            "switchgear_telemetry_errors_total", {"signal": signal, "flaw": "stranger"}
        )
        assert value == 2, signal


async def test_telemetry_for_invisible_pools_is_ignored(policies):
    telemetry = Telemetry(Metrics(), speaks_for=lambda _node, _identities: {"small"}.__contains__)
    telemetry.watch(policies, {"far.example": "192.0.2.7"})
    now_s = time.monotonic()
    logs = access_log_service.AccessLogHandler(telemetry, lambda _bad: None)
    logs.take(log(node="p1", code=500, calls=5), now_s)
    logs.take(log(kind=5, code=503, flag="no_healthy_upstream", calls=5), now_s)
    loads = load_report_service.LoadReportHandler(telemetry)
    for _ in range(2):
        loads.take(report(in_progress=50), now_s)
    assert telemetry.traffic(now_s) == {}
    far = access_log_service.AccessLogs.FromString(log(cluster="small", port=9000))
    far.http_logs.log_entry[0].common_properties.upstream_remote_address.socket_address.address = "192.0.2.7"
    logs.take(far.SerializeToString(), now_s)
    assert set(telemetry.traffic(now_s)) == {"small"}
    telemetry.stop()


def test_report_may_grow_with_the_engines_of_the_policies() -> None:
    """Each engine in a cluster and locality of its own, with every field."""
    count = 3_000
    message = load_report_service.LoadReport(node=load_report_service.Node(id="p1").SerializeToString())
    for number in range(count):
        cluster = message.cluster_stats.add(
            cluster_name="chat", cluster_service_name="chat", total_dropped_requests=1
        )
        cluster.load_report_interval.seconds = 1
        cluster.dropped_requests.add(category="x", dropped_count=1)
        locality = cluster.upstream_locality_stats.add(total_requests_in_progress=1, priority=1)
        for name in ("successful", "error", "issued"):
            setattr(locality, f"total_{name}_requests", 1)
        locality.locality.zone = "z"
        one = locality.upstream_endpoint_stats.add(total_successful_requests=1, total_requests_in_progress=1)
        one.total_error_requests = one.total_issued_requests = 1
        one.address.socket_address.address, one.address.socket_address.port_value = "10.0.0.1", 1 + number
    desk = Telemetry(Metrics())
    desk.traffic_store.set_directory(replace(EMPTY_DIRECTORY, size=count + 1))
    load_report_service.LoadReportHandler(desk).take(message.SerializeToString(), NOW_S)
    desk.traffic_store.set_directory(EMPTY_DIRECTORY)
    with pytest.raises(TelemetryLimitError):
        load_report_service.LoadReportHandler(desk).take(message.SerializeToString(), NOW_S)


async def test_reports_on_foreign_clusters_are_heard_but_no_news(rig):
    stream = rig.stream(load_report_service.METHOD)
    await stream.write(report())
    await stream.read()
    await stream.write(report(cluster="elsewhere"))
    await until(lambda: "p1" in rig.telemetry.last_signals_s(), "it is heard")
    assert rig.telemetry._timer is None
    await stream.write(report())
    await until(lambda: rig.news, "that is news")


async def test_refused_streams_are_logged_once_and_counted_each(rig):
    with capture_logs() as logs:
        for _ in range(20):
            stream = rig.stream(access_log_service.METHOD)
            await stream.write(b"\xff")
            await stream.code()
    assert rig.errors("access_log", "garbage") == 20
    assert [(one["event"], one["host"]) for one in logs] == [("telemetry.refused", "127.0.0.1")]


EMPTY_ENTRIES = b"\x0a\x00" * 2_000_000


@pytest.mark.parametrize(
    ("method", "first", "flood"),
    [
        (access_log_service.METHOD, log(node="mallory"), b"\x12" + varint(len(EMPTY_ENTRIES)) + EMPTY_ENTRIES),
        (access_log_service.METHOD, log(node="mallory"), b"\x12" + varint(100_000) + EMPTY_ENTRIES[:100_000]),
        (load_report_service.METHOD, report("mallory"), b"\x12\x00" * 2_000_000),
        (load_report_service.METHOD, report("mallory"), b"\x12\x00" * 500_000),
        (load_report_service.METHOD, report("mallory"), b"\x12\x00" * 32_000),
        (load_report_service.METHOD, report("mallory"), delimited(2, delimited(2, b"\x3a\x00" * 500_000))),
    ],
    ids=["entries-4MB", "entries-100kB", "clusters-4MB", "clusters-1MB", "clusters-64kB", "engines-1MB"],
)
async def test_message_of_empty_records_ends_its_stream_undecoded(rig, method, first, flood):
    stream = rig.stream(method)
    await stream.write(first)
    if method == load_report_service.METHOD:
        await stream.read()
    await stream.write(flood)
    began_s = time.thread_time()
    assert await asyncio.wait_for(stream.code(), LIMIT_S) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert time.thread_time() - began_s < 0.2, "2 000 000 records took half a second to decode"
    if len(flood) < MAX_REQUEST_BYTES // 2:
        signal = "access_log" if method == access_log_service.METHOD else "load_report"
        assert rig.errors(signal, "size") == 1


def test_flood_of_entries_leaves_other_nodes_their_telemetry(policies):
    """Twenty seconds: a node that sends empty entries without end next to 50 that report 20 calls a second."""
    metrics = Metrics()
    telemetry = Telemetry(metrics, clock=lambda: 0.0)
    telemetry.watch(policies)
    honest = [access_log_service.AccessLogHandler(telemetry, lambda _: None, (), "h") for _ in range(50)]
    mallory = access_log_service.AccessLogHandler(telemetry, lambda _: None, (), "h")
    for number, one in enumerate(honest):
        one.take(log(node=f"p{number}"), 0.0)
    mallory.take(log(node="mallory"), 0.0)
    empty, calls = delimited(2, EMPTY_ENTRIES[:8_000]), log(calls=2, code=500)
    for tick in range(1, 201):
        now_s = tick / 10
        for _ in range(3):
            mallory.take(empty, now_s)
        for one in honest:
            one.take(calls, now_s)
        telemetry.traffic(now_s)
    assert telemetry.sampling.keys() <= {"mallory"}, "no honest node samples"
    engine = telemetry.traffic(20.0)["chat"].engines["e0"]
    assert engine.reported_failures == 200 * 50 * 2, "no entry of an honest node is dropped"
    assert metrics.registry.get_sample_value("switchgear_telemetry_dropped_total", {"signal": "access_log"})
    telemetry.stop()
