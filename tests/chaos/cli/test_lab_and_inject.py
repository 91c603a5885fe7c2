"""`lab` keeps a lab running, `inject` injects faults into it."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from chaos.history.history_reader import read_history
from chaos.processes import ChildProcesses

EXAMPLE = Path(__file__).parents[3] / "policies" / "examples" / "single-pool.yaml"
LIMIT_S = 90.0
# Enough engines to break two of them, at little load.
SMALL = """\
apiVersion: switchgear.dev/v1alpha1
kind: Scenario
metadata: {name: small}
spec:
  title: a lab for manual faults
  incident: none
  topology: {engines: [{count: 4, slots: 2}]}
  load: {percent: 20}
"""


async def inject(lab: str, *words: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "chaos.cli", "inject", "--lab", lab, *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
    return process.returncode or 0, out.decode()


async def active_faults(session: aiohttp.ClientSession, lab: str) -> Any:
    async with session.get(f"{lab}/v1/lab") as answer:
        return (await answer.json())["faults"]


async def until_active(session: aiohttp.ClientSession, lab: str, count: int) -> Any:
    async with asyncio.timeout(LIMIT_S):
        while len(found := await active_faults(session, lab)) != count:
            await asyncio.sleep(0.02)
    return found


@pytest.mark.envoy
@pytest.mark.timeout(400)
async def test_lab_runs_and_inject_heals(tmp_path: Path) -> None:
    history, scenario = tmp_path / "history.jsonl", tmp_path / "small.yaml"
    scenario.write_text(SMALL, encoding="utf-8")
    command = [
        *(sys.executable, "-m", "chaos.cli", "lab", "-f", str(EXAMPLE)),
        *("--scenario", str(scenario), "--load", "--out", str(history)),
    ]
    async with (
        ChildProcesses(log_dir=tmp_path / "logs", stop_limit_s=LIMIT_S) as children,
        aiohttp.ClientSession() as session,
    ):
        child = await children.start("lab", command, ready_within_s=LIMIT_S)
        lab = str(child.ready["lab"])
        # Injected for a fixed time.
        status, out = await inject(lab, "hang", "--engine", "1", "--for", "500ms")
        assert (status, out.splitlines()) == (0, ["hang injected: e1", "healed"])
        # Injected while the command lives, however it dies.
        holder = await children.start(
            "inject", [sys.executable, "-m", "chaos.cli", "inject", "slow", "--lab", lab, "--count", "2"]
        )
        (fault,) = (await until_active(session, lab, 1)).values()
        assert (fault["fault"]["kind"], len(fault["targets"])) == ("slow", 2)
        holder.signal_group(signal.SIGKILL)
        assert await until_active(session, lab, 0) == {}
        # Invalid faults are refused and change nothing.
        assert await inject(lab, "slow", "--set", "factor=fast") == (
            1,
            "refused: fault.slow.factor: Input should be a valid number, unable to parse string as a number\n",
        )
        assert await inject(lab, "slow", "--engine", "77") == (
            1,
            "refused: the target matches nothing in this lab\n",
        )
        assert (await inject(lab, "slows"))[0] == 2
        async with session.post(f"{lab}/v1/faults", data=b"{") as answer:
            assert answer.status == 400
        assert await children.stop(child) == 0
    seen = read_history(history)
    assert [one.kind for one in seen.outages] == ["hang", "slow"]
    assert all(one.end_s is not None for one in seen.outages)
    assert seen.ended_s is not None
    assert any(one.ok for one in seen.requests)


async def test_inject_without_a_lab_exits_2() -> None:
    status, out = await inject("http://127.0.0.1:1", "hang")
    assert status == 2
    assert "127.0.0.1:1" in out
