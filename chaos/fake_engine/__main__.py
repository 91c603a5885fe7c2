"""``python -m chaos.fake_engine``: a fleet of simulated engines in one process, one port each.

Once all listen, it prints one line of JSON to stdout::

    {"fake": true, "control": "http://…/_fake", "engines": [{"name", "url", "port", "control"}, …]}

With one engine, SIGTERM acts as on vLLM (see ``EngineSigterm``), and a second SIGTERM exits. With more engines
SIGTERM exits. SIGINT always exits.
"""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from ipaddress import ip_address

from chaos.fake_engine.control_server import ControlServer
from chaos.fake_engine.engine_config import EngineConfig
from chaos.fake_engine.engine_faults import EngineSigterm
from chaos.fake_engine.fake_engine import FakeEngine

_NOT_FLAGS = {
    "name",
    "max_unfinished",
    "first_token_gate",
    "enable_prefix_caching",
    "routing_sidecar",
    "no_runtime_lora",
}


def main(argv: Sequence[str]) -> int:
    """Run until a signal; return 0."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.journal and arguments.count != 1:
        parser.error("--journal works with one engine only; remove --count")
    if bool(arguments.tls_cert) is not bool(arguments.tls_key) or (
        arguments.tls_client_ca and not arguments.tls_cert
    ):
        parser.error("--tls-cert and --tls-key need each other; --tls-client-ca needs both")
    if arguments.own_addresses and not arguments.port:
        parser.error("--own-addresses needs --port")
    settings = {f.name: getattr(arguments, f.name) for f in fields(EngineConfig) if f.name != "name"}
    first = EngineConfig(**settings)
    configs = [
        replace(
            first,
            name=f"{arguments.name_prefix}{index}",
            host=str(ip_address(first.host) + index) if arguments.own_addresses else first.host,
            port=first.port + index if first.port and not arguments.own_addresses else first.port,
            seed=first.seed + index,
        )
        for index in range(arguments.count)
    ]
    asyncio.run(_serve(configs, control_port=arguments.control_port))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m chaos.fake_engine", description="Simulated vLLM engines; no GPU, no model."
    )
    parser.add_argument("--count", type=int, default=1, help="number of engines (default: 1)")
    parser.add_argument("--name-prefix", default="fake-", help="engine names are PREFIX0, PREFIX1, …")
    parser.add_argument(
        "--control-port", type=int, default=0, help="port of the control API (default: 0, any free port)"
    )
    parser.add_argument(
        "--own-addresses", action="store_true", help="one address for each engine, from --host up, and one port"
    )
    parser.add_argument("--max-unfinished", type=int, help="limit on running and waiting calls; more get 503")
    parser.add_argument(
        "--first-token-gate", action="store_true", help="hold stream headers until the first token"
    )
    parser.add_argument(
        "--enable-prefix-caching", action="store_true", help="find blocks of prompts that were computed before"
    )
    parser.add_argument(
        "--routing-sidecar", action="store_true", help="let the engine that x-prefiller-host-port names prefill"
    )
    parser.add_argument("--no-runtime-lora", action="store_true", help="load and unload no adapter")
    for field in fields(EngineConfig):
        if field.name not in _NOT_FLAGS:
            flag = f"--{field.name.replace('_', '-')}"
            parser.add_argument(flag, type=type(field.default), default=field.default, help="(%(default)s)")
    return parser


async def _serve(configs: Sequence[EngineConfig], *, control_port: int) -> None:
    engines = [FakeEngine(config) for config in configs]
    control = ControlServer(engines, host=configs[0].host, port=control_port)
    for engine in engines:
        await engine.start()
    await control.start()
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, ended.set)
    terminations: list[asyncio.Task[None]] = []

    def on_sigterm() -> None:
        if len(engines) > 1 or terminations:
            ended.set()
        else:
            terminations.append(asyncio.create_task(_terminate(engines[0], ended)))

    loop.add_signal_handler(signal.SIGTERM, on_sigterm)
    print(json.dumps(_ready(engines, control)), flush=True)  # noqa: T201 -- the answer, read by the parent process
    try:
        await ended.wait()
    finally:
        for termination in terminations:
            termination.cancel()
        await control.stop()
        for engine in engines:
            await engine.stop()


async def _terminate(engine: FakeEngine, ended: asyncio.Event) -> None:
    await engine.set_fault(EngineSigterm(shutdown_timeout_s=engine.config.shutdown_timeout_s))
    await engine.terminated.wait()
    ended.set()


def _ready(engines: Sequence[FakeEngine], control: ControlServer) -> dict[str, object]:
    return {
        "fake": True,
        "control": control.url,
        "engines": [
            {
                "name": engine.config.name,
                "url": engine.url,
                "port": engine.port,
                "control": control.engine_url(engine.config.name),
            }
            for engine in engines
        ],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
