"""The demonstration as a stranger runs it: it ends on Ctrl-C and failure, and leaves nothing behind."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from chaos.demo import demo_policies
from chaos.demo.demo_plan import ENGINES, FALLBACK_ENGINES
from policies.lints.lint import lint
from policies.load import load

# Twenty processes start, on a machine that may have much else to do.
pytestmark = [pytest.mark.envoy, pytest.mark.timeout(400)]


def descendants(pid: int) -> set[int]:
    """Processes below ``pid``, at any depth."""
    below: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended while we looked
            if parent == pid:
                below |= {int(entry.name)} | descendants(int(entry.name))
    return below


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_demo_ends_all_processes_on_any_signal(number: signal.Signals, tmp_path: Path) -> None:
    demo = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "chaos.cli", "demo", "--fast", "--no-live"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert demo.stdout is not None
    expected = b""
    async with asyncio.timeout(240):
        while b"calm" not in expected:
            line = await demo.stdout.readline()
            assert line, expected.decode()
            expected += line
    started = descendants(demo.pid)
    # Two fleets of engines and the fallback, nine agents, the control plane, six Envoys.
    assert len(started) >= 19
    demo.send_signal(number)
    async with asyncio.timeout(120):
        await demo.wait()
        while any(alive(pid) for pid in started):
            await asyncio.sleep(0.05)
    if number is not signal.SIGKILL:
        assert demo.returncode == 130
        assert not list(tmp_path.iterdir())


def test_demo_policies_are_valid_without_warnings(tmp_path: Path) -> None:
    ports = {name: 9000 + index for index, name in enumerate(ENGINES)}
    agents = {name: port + 100 for name, port in ports.items()}
    fallbacks = {name: 9200 + index for index, name in enumerate(FALLBACK_ENGINES)}
    text = demo_policies.policies(ports, agents, fallbacks, 10000)
    (tmp_path / "demo.yaml").write_text(text)
    assert lint(load([tmp_path])) == ()
