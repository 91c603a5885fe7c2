"""Summary of this region for control planes of other regions: each pool appears as one engine.

A control plane decides only for engines of its own region. Elsewhere the region is an ordinary endpoint: its
address is a gateway here, its agent is this service. It speaks the agent protocol, so it is dialled, judged, aged
and probed like an engine; if it is silent, it is probed through its gateway.

Only engines of this region count. Another region's summary is an endpoint here, and would return to it as its own
capacity.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
import grpc.aio
import structlog

from engine.address import ListenAddress
from engine.proto import engine_report_pb2 as pb
from engine.report import EngineReport, Evidence, Quantiles, Verdict
from engine.tls.grpc_credentials import auth_context_identities
from engine.watch_server import WatchServer
from policies.model import PolicySet
from xds_server.decide.decisions import Decisions, EngineDecision, Health, PoolDecisions
from xds_server.model.fleet import Engine, Fleet
from xds_server.model.pool_traffic import LatencyTail
from xds_server.serve_config import ConfigError

READING: Final = "summary"
"""Name of the evidence in a summary."""

_OPTIONS: Final = (
    # Exclusive port: by default a second server would silently take half of the watchers.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 64 * 1024),
    # Watchers are a few control planes per region; every connection takes a descriptor.
    ("grpc.max_allowed_incoming_connections", 256),
    ("grpc.server_handshake_timeout_ms", 20_000),
    # Detects vanished peers within 20 s; peers may ping, too.
    ("grpc.keepalive_time_ms", 15_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
)

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["EngineAgent"].full_name
_log = structlog.get_logger()


def region_summary(
    pool: str, policies: PolicySet, fleet: Fleet, decided: PoolDecisions, *, region: str, now_s: float
) -> EngineReport:
    """The engines of a pool in this region as one engine with all their slots.

    Dead: none in rotation. Degraded: in rotation only because of the capacity floor. Busy: degradation level
    above 0, or demand at capacity; busy engines stay in rotation, with their slots.
    """
    here = [engine for engine in fleet.pools.get(pool, ()) if engine.region == region]
    ready = [engine for engine in here if _in(decided, engine) is not None]
    admission, traffic = decided.admission, fleet.traffic.get(pool)
    level = 0 if decided.degradation is None else decided.degradation.level
    pressure = None if admission is None else admission.pressure
    capacities = {} if admission is None else admission.capacities
    slots = sum(capacities[one.id].slots if one.id in capacities else one.slots for one in ready)
    load = (
        None
        if traffic is None
        else [traffic.engines[name] for one in here if (name := one.id.engine) in traffic.engines]
    )
    held = [one.in_flight for one in load or () if one.in_flight is not None]
    in_flight = sum(held) if held else None
    verdict = _verdict(ready, decided, level=level, pressure=pressure)
    demand = "" if pressure is None else f", demand {pressure:.0%} of capacity"
    sentence = f"level {level}, {len(ready)} of {len(here)} engines healthy{demand}"
    reasons = [Evidence(reading=READING, sentence=sentence)]
    if decided.degradation is not None and decided.degradation.reason:
        reasons.append(Evidence(reading="ladder", sentence=decided.degradation.reason))
    return EngineReport(
        pool="",
        engine="",
        verdict=verdict,
        evidence=sentence,
        reasons=tuple(reasons),
        observed_at_s=now_s,
        slots=max(1, int(slots)),
        requests_in_flight=in_flight,
        requests_waiting=None if in_flight is None else max(0, in_flight - int(slots)),
        time_to_first_token=_quantiles(None if traffic is None else traffic.first_byte),
        model=policies.pools[pool].spec.model,
        revision=", ".join(sorted({one.revision for one in ready if one.revision})),
    )


def _in(decided: PoolDecisions, engine: Engine) -> EngineDecision | None:
    decision = decided.engines.get(engine.id)
    return decision if decision is not None and decision.health is Health.HEALTHY else None


def _verdict(ready: Sequence[Engine], decided: PoolDecisions, *, level: int, pressure: float | None) -> Verdict:
    if not ready:
        return Verdict.DEAD
    if all((decision := _in(decided, one)) is not None and decision.floor for one in ready):
        return Verdict.DEGRADED
    return Verdict.BUSY if level or (pressure is not None and pressure >= 1) else Verdict.READY


def _quantiles(tail: LatencyTail | None) -> Quantiles | None:
    return None if tail is None else Quantiles(p50_s=tail.p50_s, p99_s=tail.p99_s)


class SummaryServer:
    """Service ``EngineAgent`` for whole pools; call ``publish`` after each round, ``run`` until cancelled.

    ``permits``: whether these identities may watch; checked again at each message.
    """

    def __init__(
        self,
        address: ListenAddress,
        region: str,
        credentials: grpc.ServerCredentials | None = None,
        permits: Callable[[tuple[str, ...]], bool] = lambda _: True,
    ) -> None:
        self._address = address
        self._credentials = credentials
        self._permits = permits
        self._region = region
        self._boot_id = secrets.token_hex(8)
        self._pools: dict[str, WatchServer] = {}
        self.port = 0

    def publish(self, policies: PolicySet, fleet: Fleet, decisions: Decisions, now_s: float) -> None:
        """Publish the state of every pool; watchers receive important changes at once."""
        for pool, decided in decisions.pools.items():
            if any(engine.region == self._region for engine in fleet.pools.get(pool, ())):
                served = self._pools.setdefault(pool, WatchServer(boot_id=self._boot_id))
                served.publish(region_summary(pool, policies, fleet, decided, region=self._region, now_s=now_s))
        for pool in self._pools.keys() - decisions.pools.keys():
            # Watchers of a removed pool get no more messages and learn of it by reconnecting.
            del self._pools[pool]

    async def run(self) -> None:
        """Serve until cancelled; ``ConfigError`` if the address is unavailable."""
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, self._handlers()),))
        try:
            if self._credentials is None:
                self.port = server.add_insecure_port(str(self._address))
            else:
                self.port = server.add_secure_port(str(self._address), self._credentials)
        except RuntimeError as error:
            raise ConfigError(f"--summary: cannot listen on {self._address}") from error
        await server.start()
        _log.info(
            "summary.listening", address=str(ListenAddress(self._address.host, self.port)), region=self._region
        )
        try:
            await asyncio.Event().wait()
        finally:
            await server.stop(None)

    def _handlers(self) -> dict[str, "grpc.RpcMethodHandler[Any, Any]"]:
        async def watch(request: pb.WatchRequest, context: Any) -> Any:
            if not self._permits(auth_context_identities(context.auth_context())):
                await context.abort(
                    grpc.StatusCode.PERMISSION_DENIED, "no access rule allows you to watch summaries"
                )
            served = self._pools.get(request.pool)
            if served is None:
                reason = f"region {self._region} has no engines of pool {request.pool!r}"
                await context.abort(grpc.StatusCode.NOT_FOUND, reason)
                return
            async for data in served.watch(request, context):
                if self._pools.get(request.pool) is not served or not self._permits(
                    auth_context_identities(context.auth_context())
                ):
                    return
                yield data

        # No Acknowledge: only a region's own control plane drains it.
        return {
            "Watch": grpc.unary_stream_rpc_method_handler(watch, request_deserializer=pb.WatchRequest.FromString),
        }
