"""``switchgear-chaos engine``: a stand-in for one vLLM, where there is no GPU and no vLLM."""

import asyncio
import errno

import click

from chaos.cli.interruption import run_until_signal
from chaos.fake_engine.engine_config import EngineConfig
from chaos.fake_engine.engine_core import NAME, engine_core
from chaos.fake_engine.fake_engine import FakeEngine


@click.command(name="engine")
@click.argument("model", default="demo-model")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port to listen on; 0 for any free port.",
)
@click.option("--slots", type=click.IntRange(1), default=16, show_default=True, help="Requests served at once.")
@click.option(
    "--token-ms", type=click.FloatRange(1, 10_000), default=10, show_default=True, help="Duration of a step."
)
@click.option("--gate/--no-gate", default=True, help="Hold stream headers until the first token. [default: gate]")
def command(*, model: str, host: str, port: int, slots: int, token_ms: float, gate: bool) -> int:
    """Serve MODEL like vLLM does, without a GPU: numbered words, with vLLM's paths, metrics and scheduling.

    A child process named VLLM::EngineCore stands for the engine core. To hang the engine while /health still
    answers 200, as a hung GPU does, stop it with `kill -STOP $(pgrep -P ENGINE_PID VLLM::EngineCor)`, and continue
    it with `kill -CONT`.

    Exit code: 0 stopped by a signal, 1 the engine core was killed, 2 usage error or the port is taken.
    """
    config = EngineConfig(
        name=f"{model}-{port}",
        model=model,
        host=host,
        port=port,
        slots=slots,
        token_s=token_ms / 1e3,
        first_token_gate=gate,
    )
    try:
        return asyncio.run(run_until_signal(_serve(config)))
    except asyncio.CancelledError:
        return 0  # stopped as intended
    except OSError as problem:
        if problem.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES):
            raise
        raise click.ClickException(f"cannot listen on {host}:{port}: {problem.strerror}") from problem


async def _serve(config: EngineConfig) -> int:
    engine = FakeEngine(config)
    await engine.start()
    try:
        async with engine_core(engine) as core:
            click.echo(f"{config.model} on {engine.url}, {config.slots} slots, simulated")
            ended = await core
        click.echo(f"{NAME} ended with {ended}, and the engine with it", err=True)
        return 1
    finally:
        await engine.stop()
