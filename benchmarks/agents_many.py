"""Many simulated agents in one process: ``python -m benchmarks.agents_many COUNT HEARTBEAT_S busy|idle``.

Each agent has its own port, so the watcher holds one connection per agent, as in production. ``busy`` agents
change their numbers in every report, ``idle`` ones repeat them. The first line on stdout is the list of ports as
JSON.
"""

import asyncio
import itertools
import json
import random
import secrets
import sys
import time
from collections.abc import AsyncIterator, Sequence

import grpc.aio

from engine.proto import engine_report_pb2 as pb
from engine.report import EngineReport, Evidence, GpuSummary, GpuVitals, Quantiles, Verdict
from engine.report_wire import encode
from engine.watch_server import WATCH


def report(boot_id: str, sequence: int, rng: random.Random, verdict: Verdict = Verdict.READY) -> bytes:
    """A report of an engine under load on two GPUs."""
    in_flight = rng.randrange(32)
    return encode(
        EngineReport(
            pool="",
            engine="",
            verdict=verdict,
            evidence="",
            reasons=(Evidence(reading="tokens", sentence=f"tokens advance with {in_flight} requests in flight"),),
            observed_at_s=time.monotonic(),
            boot_id=boot_id,
            sequence=sequence,
            requests_in_flight=in_flight,
            requests_waiting=0,
            slots=32,
            kv_cache_usage_ratio=rng.random(),
            tokens_per_s=rng.uniform(0, 2000),
            time_to_first_token=Quantiles(p50_s=rng.uniform(0.05, 0.1), p99_s=rng.uniform(0.2, 0.5)),
            time_per_output_token=Quantiles(p50_s=0.02, p99_s=rng.uniform(0.03, 0.05)),
            model="meta-llama/Llama-3.1-70B-Instruct",
            revision="vllm 0.11.0",
            gpu=GpuSummary(
                action="none",
                statement="2 GPUs through NVML",
                gpus=tuple(
                    GpuVitals(
                        rank=rank,
                        uuid=f"GPU-{rank}",
                        name="NVIDIA H100",
                        temperature_c=rng.randrange(40, 80),
                        power_w=rng.uniform(100, 700),
                        utilisation_percent=rng.randrange(100),
                        memory_total_bytes=80 << 30,
                        memory_used_bytes=72 << 30,
                    )
                    for rank in range(2)
                ),
            ),
        )
    )


class SimulatedAgents(grpc.GenericRpcHandler):
    """All of them behind one handler: which port a call came by makes no difference."""

    def __init__(self, heartbeat_s: float, *, busy: bool) -> None:
        self._heartbeat_s = heartbeat_s
        self._busy = busy
        self._rng = random.Random(1)

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        return grpc.unary_stream_rpc_method_handler(self._watch) if handler_call_details.method == WATCH else None

    async def _watch(self, request: bytes, _: "grpc.aio.ServicerContext[bytes, bytes]") -> AsyncIterator[bytes]:
        pb.WatchRequest.FromString(request)
        boot_id = secrets.token_hex(8)
        data = report(boot_id, 1, self._rng)
        # Engines of a fleet did not start in the same instant.
        yield data
        await asyncio.sleep(self._rng.uniform(0, self._heartbeat_s))
        for sequence in itertools.count(2):
            if self._busy:
                data = report(boot_id, sequence, self._rng)
            yield data
            await asyncio.sleep(self._heartbeat_s)


async def _serve(count: int, heartbeat_s: float, *, busy: bool) -> None:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((SimulatedAgents(heartbeat_s, busy=busy),))
    ports = [server.add_insecure_port("127.0.0.1:0") for _ in range(count)]
    await server.start()
    print(json.dumps({"ports": ports}), flush=True)
    await server.wait_for_termination()


def main(argv: Sequence[str]) -> int:
    """Run until killed."""
    count, heartbeat_s, kind = argv
    asyncio.run(_serve(int(count), float(heartbeat_s), busy=kind == "busy"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
