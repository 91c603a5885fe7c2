"""Types the blocks of quick start and README verbatim into one shell, on the ports they name.

Programs are real, Envoys and agents included, and run from the wheel; vLLM is a stand-in. Separate network and
process namespaces isolate them from this machine. Blocks that cannot be typed state the reason in the page.
"""

import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest

from tests.shell import APART, LIMIT_S, ROOT, Shell, shell
from tests.walkthrough import Step, copied, steps
from tests.wheel import built_wheel

START: Final = ROOT / "docs" / "quickstart.md"
README: Final = ROOT / "README.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Expected result of a command: exit status and, eventually, text in its output."""

    status: int = 0
    shows: str = ""


EXPECTED: Final[Mapping[str, Expected]] = {
    "switchgear validate --strict": Expected(shows="valid: 1 pool, 1 route"),
    "switchgear validate -f": Expected(shows="valid: 1 pool, 1 route"),
    "switchgear explain": Expected(shows="default:"),
    "curl --retry": Expected(),
    "curl ": Expected(shows='"text"'),
    "switchgear status": Expected(shows=r"hung(?s:.)*UNHEALTHY|UNHEALTHY(?s:.)*hung"),
    "switchgear why one": Expected(status=1, shows="because it is hung"),
    "switchgear-agent drain": Expected(shows="Drained after"),
    "switchgear-agent undrain": Expected(),
    "switchgear-agent status": Expected(shows="ready"),
    "switchgear get engines": Expected(shows="(?s)one .*HEALTHY.*two .*HEALTHY"),
    "switchgear get zones": Expected(shows=r"(?s)chat +a +1/1.*chat +b +1/1"),
    "switchgear why zone:a": Expected(shows="zone a"),
}
MODEL: Final = "demo-model"
"""What the reader writes for the page's MODEL, which the policy names."""

PACKAGES: Final = ("command_line", "policies", "engine", "xds_server", "istio", "chaos")

VLLM: Final = Expected(shows=r"chat/one +HEALTHY +ready")
"""Of ``switchgear status`` once a vLLM is in a stand-in's place."""

SECURED: Final = Expected(shows="gateway-1")
"""Of the second ``switchgear status``: the Envoy with its certificate is connected and in sync."""
_TIME: Final = re.compile(r"\d+(\.\d+)? ?m?s\b")


def apart() -> bool:
    """Whether this machine permits separate network and process namespaces."""
    if any(shutil.which(one) is None for one in ("unshare", "ip", "pgrep", "curl")):
        return False
    return subprocess.run([*APART, "true"], capture_output=True, check=False).returncode == 0


def shown(step: Step, output: str) -> bool:
    """Whether output matches the page, ignoring times."""
    return replace(step, printed=_TIME.sub("1s", step.printed)).shown_by(_TIME.sub("1s", output))


def become(page: Path, line: int, command: str, expected: Expected, opened: Shell) -> None:
    """Repeat a command until it gives the expected result."""
    give_up_at = time.monotonic() + LIMIT_S
    while True:
        status, output = opened.typed(command)
        if status == expected.status and re.search(expected.shows, output):
            return
        if time.monotonic() > give_up_at:
            pytest.fail(f"{page.name}:{line}\n{command}\n--- exit status {status}, and it prints\n{output}")
        time.sleep(0.1)


# Takes twenty seconds on an idle machine, longer on a busy one.
@pytest.mark.timeout(900)
@pytest.mark.envoy
def test_quick_start_commands_work(tmp_path: Path) -> None:
    if not apart():
        pytest.skip("the page names ports, and this machine forbids network namespaces (unshare)")
    programs = tmp_path / "programs"
    programs.mkdir()
    stand_in = programs / "vllm"
    site = tmp_path / "site"
    zipfile.ZipFile(built_wheel(tmp_path / "wheel")).extractall(site)
    stand_in.write_text(f'#!/bin/sh\nPYTHONPATH={site}:{ROOT} exec {sys.executable} -m tests.typed.vllm "$@"\n')
    stand_in.chmod(0o755)
    (tmp_path / "chat" / "policies").mkdir(parents=True)
    page = START.read_text().replace("MODEL", MODEL)
    (policy,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "chat" / "policies" / "chat.yaml").write_text(policy)
    typed = set()
    with shell(tmp_path, {"HOME": str(tmp_path), "PYTHONPATH": str(site)}, apart=True) as opened:
        opened.type(f"ip link set lo up; PATH={programs}:$PATH")
        for package in PACKAGES:
            found = opened.type(f"{sys.executable} -c 'import {package}; print({package}.__path__)'")
            assert str(site) in found, "the wheel is what runs"
        for line, command in copied(page):
            name = next((one for one in EXPECTED if command.startswith(one)), None)
            if name == "switchgear status" and name in typed:
                become(START, line, command, SECURED, opened)
            else:
                become(START, line, command, EXPECTED[name] if name else Expected(), opened)
            typed.add(name)
            if name == "switchgear why one":
                (asked,) = steps(README.read_text())
                assert command.startswith(asked.command)
                give_up_at = time.monotonic() + LIMIT_S
                while not shown(asked, output := opened.type(asked.command)):
                    assert time.monotonic() < give_up_at, output
            if command.startswith("curl --retry 600"):
                become(START, line, "switchgear status", VLLM, opened)
    assert typed >= set(EXPECTED), "the page no longer has what is expected here"


def test_readme_blocks_are_tested_or_exempted() -> None:
    assert list(copied(README.read_text())) == []
    assert README.read_text().count("```sh") == README.read_text().count("<!-- not typed: ")


def test_copyable_block_is_typed_line_by_line() -> None:
    page = "a\n\n```sh\nb \\\n  c\nd &\n```\n"
    page += "<!-- not typed: too long -->\n```sh\ne\n```\n```\nf\n```\n```sh\ng\n```\n"
    assert list(copied(page)) == [(4, "b \\\n  c"), (6, "d &"), (16, "g")]
