"""Engine cores that outlived their API server are named, and no others."""

import asyncio
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from engine.agent.cli.status import status_lines
from engine.agent.orphaned_cores import orphaned_cores
from tests.engine.agent.conftest import StartAgent, StartEngine

CORE = "VLLM::EngineCore_DP0"


def process_tree(folder: Path, processes: Mapping[int, tuple[int, str]]) -> Path:
    """Files of ``/proc`` for processes: their parents and first words."""
    for pid, (parent, command) in processes.items():
        (folder / str(pid)).mkdir(parents=True)
        (folder / str(pid) / "stat").write_text(f"{pid} (a (name) S) S {parent} 1 1 0 -1 4194560 1")
        (folder / str(pid) / "cmdline").write_bytes(command.encode() + b"\0-m\0x\0")
    return folder


@pytest.mark.parametrize(
    ("parent", "orphaned"),
    [
        ("/usr/bin/python3.12", False),
        ("VLLM::APIServer_0", False),
        ("/opt/venv/bin/vllm", False),
        ("/sbin/init", True),
        ("/usr/lib/systemd/systemd", True),
        ("/pause", True),
    ],
)
def test_core_is_orphaned_unless_its_parent_is_an_api_server(tmp_path: Path, parent: str, orphaned: bool) -> None:
    tree = process_tree(tmp_path, {1: (0, "/sbin/init"), 7: (0, parent), 9: (7, CORE), 10: (9, "VLLM::Worker")})
    assert [one.pid for one in orphaned_cores(tree)] == ([9] if orphaned else [])


def test_core_whose_parent_has_just_ended_is_orphaned(tmp_path: Path) -> None:
    (core,) = orphaned_cores(process_tree(tmp_path, {9: (7, CORE)}))
    assert core.sentence.endswith("end it: kill -9 9")


def test_machine_without_proc_has_none(tmp_path: Path) -> None:
    assert orphaned_cores(tmp_path / "absent") == ()


@pytest.mark.timeout(300)
async def test_report_names_an_orphaned_engine_core(start_agent: StartAgent, start_engine: StartEngine) -> None:
    init = Path("/proc/1/cmdline").read_bytes().split(b"\0")[0].lower()
    if b"python" in init or b"vllm" in init:
        pytest.skip("orphans get a Python parent here")
    engine = await start_engine()
    agent = await start_agent(engine.url, "--gpu", "off")
    await agent.until("ready")
    assert (await agent.report())["orphaned_cores"] == []
    # The shell ends at once, and leaves its child to the init process.
    shell = await asyncio.create_subprocess_exec(
        *("bash", "-c", f"(exec -a {CORE} sleep 300) >/dev/null 2>&1 & echo $!"), stdout=asyncio.subprocess.PIPE
    )
    pid = int((await shell.communicate())[0])
    try:
        _, report = await agent.until_report(lambda report: report["orphaned_cores"])
        assert [one["pid"] for one in report["orphaned_cores"]] == [pid]
        assert any(line.startswith(f"Orphaned:   {CORE} (process {pid})") for line in status_lines(report))
    finally:
        os.kill(pid, signal.SIGKILL)
    await agent.until_report(lambda report: not report["orphaned_cores"])
