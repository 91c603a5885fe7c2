"""Types the blocks of docs/lab.md into a shell of its own, on the port that they name."""

from pathlib import Path
from typing import Final

import pytest

from tests.shell import ROOT, shell
from tests.typed.test_quick_start_and_readme import Expected, apart, become
from tests.walkthrough import copied

LAB: Final = ROOT / "docs" / "lab.md"


@pytest.mark.timeout(900)
@pytest.mark.envoy
def test_lab_page_commands_work(tmp_path: Path) -> None:
    if not apart():
        pytest.skip("the page names a port, and this machine forbids network namespaces (unshare)")
    (first, begin), (line, inject) = copied(LAB.read_text())
    with shell(tmp_path, {"HOME": str(tmp_path)}, apart=True) as opened:
        # Job control, or a command in the background ignores Ctrl-C.
        opened.type(f"ip link set lo up; set -m\n{{ {begin}\n}} > lab.log 2>&1 & lab=$!")
        become(LAB, first, "curl -sf http://127.0.0.1:8080/", Expected(shows="(?i)<!doctype html"), opened)
        become(LAB, first, "curl -sf http://127.0.0.1:8080/v1/lab", Expected(shows='"faults"'), opened)
        status, output = opened.typed(inject)
        assert status == 0, f"{LAB.name}:{line}\n{output}"
        assert opened.typed("pgrep -f 'envoy|chaos'")[0] == 0
        opened.type("kill -INT -- -$lab; wait $lab")
        assert opened.typed("pgrep -f 'envoy|chaos'")[0] == 1, opened.type("ps ax; cat lab.log")
