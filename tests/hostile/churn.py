"""A whole server in this process under months of churn in seconds: counts what is left behind.

A *turn* adds a new proxy, engine, pool and zone, and removes those of the turn before: policies are edited and
refused, engines fail, recover, are ejected and restored, proxies connect, report, refuse a resource and leave,
and the server ends streams for their errors.
After many turns no more objects may exist than after a few.
"""

import asyncio
import gc
import json
import os
import re
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import fields, is_dataclass
from functools import _lru_cache_wrapper
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import grpc
import grpc.aio

from engine.address import ListenAddress
from engine.report import EngineReport, ReportSource, Verdict
from tests.eventually import eventually
from xds_server.admin_api.status_types import OrderRequest
from xds_server.app.application import BoundAddresses, ControlPlane
from xds_server.model.fleet import EngineId
from xds_server.model.order import OrderAction
from xds_server.model.type_urls import CLUSTER, ENDPOINT, LISTENER, ROUTE
from xds_server.serve_config import ServeConfig
from xds_server.telemetry import access_log_service, load_report_service
from xds_server.translate.access_log_config import ATTEMPT_HEADER, LOG_NAME
from xds_server.wire.decode import DeltaDiscoveryRequest, DeltaDiscoveryResponse

LIMIT_S: Final = 60.0
OURS: Final = ("xds_server.", "policies.", "engine.", "prometheus_client.")
DELTA: Final = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"


class Churn:
    """One server; ``turn`` does one turn."""

    def __init__(self, folder: Path) -> None:
        self._policies = folder / "policies"
        self._policies.mkdir()
        self._number = 0
        self.config = ServeConfig(
            policies=(self._policies,),
            listen=ListenAddress("127.0.0.1", 0),
            admin=ListenAddress("127.0.0.1", 0),
            state_dir=folder / "state",
            ledger=folder / "ledger.jsonl",
            # Each turn takes away about half of what there is, which a server is otherwise right to hold back.
            allow_shrink=True,
            first_reports_s=0.0,
            settle_s=0.01,
            poll_s=0.05,
            # As for whole programs, which read the variable themselves.
            transport="h2" if os.environ.get("SWITCHGEAR_TRANSPORT") == "h2" else "grpc",
        )
        self.write()
        self.server = ControlPlane(self.config)
        self._target = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Churn"]:
        """The server serves inside the block."""
        listening: asyncio.Future[BoundAddresses] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(self.server.run(asyncio.Event(), listening.set_result))
        await asyncio.wait((serving, listening), timeout=LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        self._target = str(listening.result().xds)
        try:
            yield self
        finally:
            serving.cancel()
            await asyncio.wait((serving,))

    @property
    def _port(self) -> int:
        """Port of this turn's engine; never connected to."""
        return 10 + self._number % 1_000

    def write(self, *, bad: bool = False) -> None:
        """Policies with an engine, a zone, a pool and a route of this turn, and of no other."""
        now = self._number
        endpoints = [
            {"address": "127.0.0.1", "port": 9, "name": "stays", "zone": "z"},
            {"address": "127.0.0.1", "port": self._port, "name": f"e{now}", "zone": f"z{now}", "agentPort": 9},
        ]
        documents: list[dict[str, Any]] = []
        for pool in ("chat", f"pool{now}"):
            documents += [
                {
                    "kind": "EnginePool",
                    "metadata": {"name": pool},
                    "spec": {"model": pool, "endpoints": endpoints, "probe": {"enabled": False}},
                },
                {
                    "kind": "ModelRoute",
                    "metadata": {"name": pool},
                    "spec": {
                        "listener": {"port": 8080},
                        "match": {"headers": [{"name": "x-pool", "exact": pool}]},
                        "pools": [{"pool": pool}],
                    },
                },
            ]
        documents.append(
            {
                "kind": "ResiliencePolicy",
                "metadata": {"name": "chat"},
                "spec": {
                    "pools": ["chat"],
                    "breaker": {"errorRatePercent": "no" if bad else 10 + now % 50},
                    "drain": {"deadline": "0s"},
                },
            }
        )
        text = "\n---\n".join(json.dumps({"apiVersion": "switchgear.dev/v1alpha1", **one}) for one in documents)
        path = self._policies / "chat.yaml"
        path.with_suffix(".tmp").write_text(text)
        path.with_suffix(".tmp").replace(path)

    async def turn(self) -> None:
        """One turn, done when the server has taken all of it in."""
        await self._edits()
        async with grpc.aio.insecure_channel(
            self._target, options=(("grpc.use_local_subchannel_pool", 1),)
        ) as channel:
            await self._proxy(channel)
            await self._refused(channel)
        await eventually(lambda: not self.server.proxies.publisher.proxies(), "no proxy is connected", LIMIT_S)
        await self._engines()

    async def _edits(self) -> None:
        files = self.server.policies.reconciler.source_state
        self.write(bad=True)
        await eventually(
            lambda: self.server.policies.reconciler.source_state is not files, "the edit is refused", LIMIT_S
        )
        self._number += 1
        self.write()
        pool = f"pool{self._number}"

        def served() -> bool:
            serving = self.server.policies.reconciler.serving
            return serving is not None and pool in serving.policies.pools

        await eventually(served, f"{pool} is served", LIMIT_S)

    async def _proxy(self, channel: grpc.aio.Channel) -> None:
        """A new proxy: accepts all but one resource, reports its calls, and leaves."""
        node = f"proxy-{self._number}"
        call = channel.stream_stream(DELTA)()
        for type_url in (CLUSTER, ENDPOINT, LISTENER, ROUTE):
            request = DeltaDiscoveryRequest(type_url=type_url)
            request.node.id = node
            request.node.locality.zone = f"z{self._number}"
            if type_url in (ENDPOINT, ROUTE):
                request.resource_names_subscribe.extend(["chat", f"pool{self._number}", "*"])
            await call.write(request.SerializeToString())
        response = DeltaDiscoveryResponse.FromString(await call.read())
        refusal = DeltaDiscoveryRequest(type_url=response.type_url, response_nonce=response.nonce)
        refusal.error_detail.message = f"Error adding/updating cluster(s) pool{self._number}: no"
        await call.write(refusal.SerializeToString())
        logs, loads = (
            channel.stream_stream(access_log_service.METHOD)(),
            channel.stream_stream(load_report_service.METHOD)(),
        )

        async def told() -> bool:
            """Whether both reports counted: those sent before the proxy counts as connected do not."""
            await logs.write(_log(node, f"pool{self._number}", self._port))
            await loads.write(_load(node, f"pool{self._number}", self._port))
            return len(self.server.proxies.telemetry.last_signals_s().get(node, ())) == 2

        await eventually(told, f"{node} reports calls and load", LIMIT_S)
        for one in (call, logs, loads):
            one.cancel()

    async def _refused(self, channel: grpc.aio.Channel) -> None:
        """Streams that the server ends, for what they send first."""
        for method in (DELTA, access_log_service.METHOD, load_report_service.METHOD):
            call = channel.stream_stream(method)()
            await call.write(b"\xff" * 100)
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT, method

    async def _engines(self) -> None:
        """An engine that dies, comes back, is ordered out and in again."""
        reconciler = self.server.policies.reconciler
        key = EngineId("chat", f"e{self._number}")
        for verdict in (Verdict.DEAD, Verdict.READY):
            for look in range(3):
                reconciler.on_report(_report(key, verdict, f"{verdict.value} {self._number}.{look}"))

        def known() -> bool:
            return reconciler.built is not None and key in reconciler.built.decisions.engines

        await eventually(known, f"{key} is decided on", LIMIT_S)
        order = OrderRequest(engine=str(key), action=OrderAction.EJECT, for_s=3_600.0, reason="churn", force=True)
        self.server.admin.backend.order(order)
        assert self.server.admin.backend.end_order(str(key), "churn")


def _report(key: EngineId, verdict: Verdict, evidence: str) -> EngineReport:
    return EngineReport(
        pool=key.pool,
        engine=key.engine,
        verdict=verdict,
        evidence=evidence,
        source=ReportSource.PROBE,
        observed_at_s=time.monotonic(),
    )


def _log(node: str, cluster: str, port: int) -> bytes:
    message = access_log_service.AccessLogs()
    message.identifier.node.id = node
    message.identifier.log_name = LOG_NAME
    entry = message.http_logs.log_entry.add()
    common = entry.common_properties
    common.access_log_type = 9
    address = common.upstream_remote_address.socket_address
    address.address, address.port_value = "127.0.0.1", port
    common.upstream_cluster, common.route_name = cluster, f"{cluster}/non-streaming"
    common.duration.FromMilliseconds(500)
    common.time_to_last_upstream_rx_byte.FromMilliseconds(500)
    entry.response.response_code.value = 500
    entry.request.request_headers[ATTEMPT_HEADER] = "1"
    return bytes(message.SerializeToString())


def _load(node: str, cluster: str, port: int) -> bytes:
    message = load_report_service.LoadReport()
    message.node = load_report_service.Node(id=node).SerializeToString()
    found = message.cluster_stats.add(cluster_name=cluster)
    one = found.upstream_locality_stats.add().upstream_endpoint_stats.add()
    address = one.address.socket_address
    address.address, address.port_value = "127.0.0.1", port
    one.total_requests_in_progress, one.total_issued_requests = 1, 1
    return bytes(message.SerializeToString())


# -- what is there ---------------------------------------------------------------------------------------------


def sizes(root: object) -> Mapping[str, int]:
    """How much every container has in it that is reached from here through objects of ours, by the way there.

    Of containers in containers the sum counts, so that a way has no name in it that changes.
    """
    found: Counter[str] = Counter()
    seen: set[int] = set()
    waiting: deque[tuple[str, object]] = deque([(type(root).__name__, root)])
    while waiting:
        way, one = waiting.popleft()
        if id(one) in seen or isinstance(one, str | bytes | int | float | type | None):
            continue
        seen.add(id(one))
        if isinstance(one, dict | MappingProxyType):
            found[way] += len(one)
            waiting.extend((f"{way}[]", value) for value in one.values())
            waiting.extend((f"{way}{{}}", key) for key in one)
        elif isinstance(one, list | tuple | set | frozenset | deque):
            if not isinstance(one, tuple):
                found[way] += len(one)
            waiting.extend((f"{way}[]", value) for value in one)
        elif type(one).__module__.startswith(OURS):
            waiting.extend((f"{way}.{name}", value) for name, value in _parts(one))
    return found


def _parts(one: object) -> Iterator[tuple[str, object]]:
    names = dict.fromkeys(getattr(one, "__dict__", {}))
    for kind in type(one).__mro__:
        names.update(dict.fromkeys(getattr(kind, "__slots__", ())))
    if is_dataclass(one):
        names.update(dict.fromkeys(field.name for field in fields(one)))
    for name in names:
        if name not in ("__dict__", "__weakref__") and hasattr(one, name):
            yield name, getattr(one, name)


def objects() -> Mapping[str, int]:
    """Number of objects of each of our types and of our client libraries, and of tasks and timers.

    What the language keeps for itself (contexts of timers that were cancelled, patterns) comes and goes with time.
    """
    for _ in range(3):
        gc.collect()
    kinds = Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_objects())
    found = {kind: count for kind, count in kinds.items() if kind.startswith((*OURS, "grpc.", "aiohttp."))}
    timers = getattr(asyncio.get_running_loop(), "_scheduled", ())
    return {
        **found,
        "tasks": len(asyncio.all_tasks()),
        "timers": sum(not timer.cancelled() for timer in timers),
    }


def caches() -> Mapping[str, int]:
    """How much there is in what modules keep for themselves: caches without a limit, and compiled expressions.

    Of those at most 512 are kept, and one with a long list in it can be large: names do not belong in them.
    """
    found = {"re": len(re._cache)}  # type: ignore[attr-defined]  # private, and the only place to look
    for one in gc.get_objects():
        if isinstance(one, _lru_cache_wrapper) and one.cache_info().maxsize is None:
            found[f"{one.__module__}.{one.__qualname__}"] = one.cache_info().currsize
    return found
