"""Killed while it writes, two hundred times: what was kept is there, and whole."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KILLS = 200


# Each kill waits until something is on the disk, and others may keep that busy.
@pytest.mark.timeout(600)
def test_written_state_survives_sigkill(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.hostile.sigkill_writers", str(tmp_path / "state"), str(KILLS), "7"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=590,
    )
    *findings, counts = ended.stdout.splitlines()
    assert findings == []
    said = json.loads(counts)
    assert said["kills"] == KILLS
    assert min(said[part] for part in ("store", "orders", "ledger", "history", "recording")) >= KILLS // 5
    assert said["left_beside"] > 0, "no kill met a file that was half written: it proved nothing"
    assert said["left"] == 0, "what kills leave behind is swept away"
