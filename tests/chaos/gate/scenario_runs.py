"""``switchgear-chaos run`` as a gate runs it: a process, and its report."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chaos.processes import ChildProcesses


async def run(arguments: Sequence[str], folder: Path, name: str = "run") -> tuple[str, list[dict[str, Any]]]:
    """The text and the reports of one run; its log, ``name``, is in the folder."""
    command = [sys.executable, "-m", "chaos.cli", "run", *arguments, "-o", "json"]
    async with ChildProcesses(log_dir=folder) as processes:
        child = await processes.start(name, command)
        await child.wait()
    text, _, data = f"\n{child.log_path.read_text()}".partition("\n[\n")
    assert data, text
    return text, json.loads(f"[{data}")


async def findings(arguments: Sequence[str], folder: Path, *, tries: int) -> dict[str, dict[str, Any]]:
    """Findings of one scenario by name; repeated while the machine was too busy for a verdict."""
    found: dict[str, dict[str, Any]] = {}
    for number in range(tries):
        _, (report,) = await run(arguments, folder, f"run-{number}")
        found = {one["check"]: one for one in report["findings"]}
        if found["bench"]["answer"] == "yes":
            break
    return found
