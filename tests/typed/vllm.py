"""Stand-in for ``vllm serve``: a simulated engine, and a process named like vLLM's core.

The engine hangs while that process is stopped, so that readers can do to it what the pages show.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from chaos.fake_engine import EngineConfig, EngineHang, FakeEngine

CORE = "VLLM::EngineCore"
_LOOKS_EVERY_S = 0.02


async def serve(model: str, port: int, *, gate: bool) -> None:
    """Serve until killed."""
    sleep = shutil.which("sleep")
    assert sleep is not None
    with tempfile.TemporaryDirectory() as folder:
        named = Path(folder) / CORE
        named.symlink_to(sleep)
        core = await asyncio.create_subprocess_exec(named, "infinity")
        engine = FakeEngine(
            EngineConfig(name=f"vllm-{port}", model=model, port=port, slots=16, first_token_gate=gate)
        )
        await engine.start()
        hangs = False
        while core.returncode is None:
            if stopped(core.pid) != hangs:
                hangs = not hangs
                await engine.set_fault(EngineHang() if hangs else None)
            await asyncio.sleep(_LOOKS_EVERY_S)


def stopped(pid: int) -> bool:
    """Whether a process is stopped: field 3 of stat, behind the name in parentheses (proc(5))."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="vllm")
    parser.add_argument("command", choices=("serve",))
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--enable-server-load-tracking", action="store_true")
    parser.add_argument("--middleware", choices=("first_token_gate.FirstTokenGate",))
    options = parser.parse_args(argv)
    asyncio.run(serve(options.model, options.port, gate=options.middleware is not None))


if __name__ == "__main__":
    main(sys.argv[1:])
