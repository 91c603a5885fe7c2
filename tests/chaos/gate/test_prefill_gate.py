"""A dead prefill engine in a live lab: callers notice nothing, and half of them do with a fixed list."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from chaos.processes import ChildProcesses

# Repeated if the machine was too busy for a verdict.
pytestmark = [pytest.mark.envoy, pytest.mark.timeout(1200)]

EXAMPLE = Path(__file__).parents[3] / "policies" / "examples" / "prefill-and-decode.yaml"
TRIES = 4


async def findings(subject: str, folder: Path, *, tries: int) -> dict[str, dict[str, Any]]:
    """Findings of a run by name; repeated while the machine was too busy."""
    command = [sys.executable, "-m", "chaos.cli", "run", "prefiller-dies", "-f", subject, "-o", "json"]
    found: dict[str, dict[str, Any]] = {}
    async with ChildProcesses(log_dir=folder) as processes:
        for number in range(tries):
            child = await processes.start(f"run-{Path(subject).stem}-{number}", command)
            await child.wait()
            text, _, data = child.log_path.read_text().partition("[\n")
            assert data, text
            (report,) = json.loads(f"[{data}")
            found = {one["check"]: one for one in report["findings"]}
            if found["bench"]["answer"] == "yes":
                break
    return found


async def test_dead_prefill_engine_is_named_by_a_fixed_list_only(tmp_path: Path) -> None:
    kept = await findings(str(EXAMPLE), tmp_path, tries=TRIES)
    assert {name: one["why"] for name, one in kept.items() if one["answer"] != "yes"} == {}
    missed = await findings("envoy", tmp_path, tries=1)
    assert missed["goodputPercent"]["answer"] == "no"
    assert "http_error" in missed["goodputPercent"]["why"]
