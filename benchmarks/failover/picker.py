"""An endpoint picker as a process: ``python -m benchmarks.failover.picker --by metrics --engine HOST:PORT ...``.

Envoy calls it for each request over ext_proc and gets an engine in a header: the endpoint picker protocol of the
Gateway API's inference extension. A stand-in: it reads no prompts. Its first line on stdout is its address, once
it knows every engine. SIGTERM ends it.
"""

import argparse
import asyncio
import contextlib
import json
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Final

import aiohttp
import grpc
import grpc.aio
from envoy_data_plane.envoy.config.core.v3 import HeaderValue, HeaderValueOption
from envoy_data_plane.envoy.service.ext_proc.v3 import (
    CommonResponse,
    HeaderMutation,
    HeadersResponse,
    ProcessingRequest,
    ProcessingResponse,
)

from benchmarks.failover.picker_policy import By, EngineGauges, best_scored, engine_gauges, least_busy

ENGINE_HEADER: Final = "x-gateway-destination-endpoint"
METHOD: Final = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"

# The reference picker's interval, and the readiness probe of its example deployment: one failure is enough.
_METRICS_EVERY_S: Final = 0.05
_HEALTH_EVERY_S: Final = 1.0
_LIMIT_S: Final = 1.0


class EndpointPicker(grpc.GenericRpcHandler):
    """What is known of the engines, and the answers to Envoy."""

    def __init__(self, engines: Sequence[str], by: By) -> None:
        self._engines = engines
        self._by = by
        self._rng = random.Random(0)
        self._said: dict[str, EngineGauges] = {}
        self._well: set[str] = set()
        self._in_flight: Counter[str] = Counter()
        self.knows_all = asyncio.Event()

    async def follow(self, session: aiohttp.ClientSession) -> None:
        """Poll the engines until cancelled."""
        async with asyncio.TaskGroup() as group:
            for engine in self._engines:
                group.create_task(self._follow_health(session, engine))
                if self._by == "metrics":
                    group.create_task(self._follow_metrics(session, engine))

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        if handler_call_details.method != METHOD:
            return None
        return grpc.stream_stream_rpc_method_handler(self._process)

    async def _process(
        self, requests: AsyncIterator[bytes], context: "grpc.aio.ServicerContext[bytes, bytes]"
    ) -> AsyncIterator[bytes]:
        """Pick an engine for one request, and count it until the answer begins or the caller leaves."""
        engine: str | None = None
        try:
            async for message in requests:
                asked = ProcessingRequest.parse(message)
                if asked.request_headers is None:
                    yield bytes(ProcessingResponse(response_headers=HeadersResponse()))
                    continue
                engine = self._pick()
                if engine is None:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "no healthy engine")
                else:
                    self._in_flight[engine] += 1
                    yield bytes(ProcessingResponse(request_headers=_to(engine)))
        finally:
            if engine is not None:
                self._in_flight[engine] -= 1

    def _pick(self) -> str | None:
        if self._by == "in_flight":
            return least_busy({one: self._in_flight[one] for one in self._engines if one in self._well}, self._rng)
        return best_scored({one: self._said[one] for one in self._engines if one in self._well}, self._rng)

    async def _follow_metrics(self, session: aiohttp.ClientSession, engine: str) -> None:
        while True:
            # On failure, keep the engine's last values.
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, KeyError):
                async with session.get(f"http://{engine}/metrics") as answer:
                    self._said[engine] = engine_gauges(await answer.read())
            await asyncio.sleep(_METRICS_EVERY_S)

    async def _follow_health(self, session: aiohttp.ClientSession, engine: str) -> None:
        while True:
            try:
                async with session.get(f"http://{engine}/health") as answer:
                    well = answer.status == 200
            except (aiohttp.ClientError, TimeoutError):
                well = False
            if well and (self._by == "in_flight" or engine in self._said):
                self._well.add(engine)
            else:
                self._well.discard(engine)
            if len(self._well) == len(self._engines):
                self.knows_all.set()
            await asyncio.sleep(_HEALTH_EVERY_S)


def _to(engine: str) -> HeadersResponse:
    header = HeaderValueOption(header=HeaderValue(key=ENGINE_HEADER, raw_value=engine.encode()))
    return HeadersResponse(response=CommonResponse(header_mutation=HeaderMutation(set_headers=[header])))


async def serve(engines: Sequence[str], by: By) -> None:
    """Answer until SIGTERM."""
    picker = EndpointPicker(engines, by)
    server = grpc.aio.server(handlers=(picker,), options=(("grpc.so_reuseport", 0),))
    port = server.add_insecure_port("127.0.0.1:0")
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_LIMIT_S)) as session:
        following = asyncio.create_task(picker.follow(session))
        await picker.knows_all.wait()
        await server.start()
        print(json.dumps({"port": port}), flush=True)
        await ended.wait()
        following.cancel()
    await server.stop(grace=None)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.failover.picker", description=__doc__)
    parser.add_argument("--by", choices=("metrics", "in_flight"), required=True)
    parser.add_argument("--engine", action="append", required=True, help="HOST:PORT, once for each")
    options = parser.parse_args(argv)
    asyncio.run(serve(options.engine, options.by))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
