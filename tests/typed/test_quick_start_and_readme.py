"""The blocks of the quick start and of the README, typed word for word into one shell, on the ports they name.

Programs are real, Envoys and agents included; vLLM is a stand-in, and a network and processes of their own keep it
apart from whatever else runs here. What cannot be typed says in the page why not.
"""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest

from tests.shell import APART, LIMIT_S, ROOT, Shell, shell
from tests.walkthrough import Step, copied, steps

START: Final = ROOT / "docs" / "quickstart.md"
README: Final = ROOT / "README.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a command must come to: its exit status, and what its answer has in it, sooner or later."""

    status: int = 0
    shows: str = ""


EXPECTED: Final[Mapping[str, Expected]] = {
    "switchgear validate policies": Expected(shows="valid: 1 pool, 1 route"),
    "switchgear explain": Expected(shows="default:"),
    "curl ": Expected(shows='"text"'),
    "switchgear status": Expected(shows=r"hung(?s:.)*UNHEALTHY|UNHEALTHY(?s:.)*hung"),
    "switchgear why one": Expected(status=1, shows="because it is hung"),
    "switchgear-agent drain": Expected(shows="drained"),
    "switchgear-agent undrain": Expected(),
    "switchgear-agent report": Expected(shows="ready"),
    "switchgear get engines": Expected(shows="(?s)one .*HEALTHY.*two .*HEALTHY"),
    "switchgear get zones": Expected(shows=r"(?s)chat +a +1/1.*chat +b +1/1"),
    "switchgear why zone:a": Expected(shows="zone a"),
}
SECURED: Final = Expected(shows="gateway-1")
"""Of the second ``switchgear status``: the Envoy with its certificate is there, and in step."""
_TIME: Final = re.compile(r"\d+(\.\d+)? ?m?s\b")


def apart() -> bool:
    """Whether this machine lets us have a network and processes of our own."""
    if any(shutil.which(one) is None for one in ("unshare", "ip", "pkill", "curl")):
        return False
    return subprocess.run([*APART, "true"], capture_output=True, check=False).returncode == 0


def shown(step: Step, output: str) -> bool:
    """Whether an output is what a page shows, whatever the times in it."""
    return replace(step, printed=_TIME.sub("1s", step.printed)).shown_by(_TIME.sub("1s", output))


def become(page: Path, line: int, command: str, expected: Expected, opened: Shell) -> None:
    """Type a command until it comes to what is expected."""
    give_up_at = time.monotonic() + LIMIT_S
    while True:
        status, output = opened.typed(command)
        if status == expected.status and re.search(expected.shows, output):
            return
        if time.monotonic() > give_up_at:
            pytest.fail(f"{page.name}:{line}\n{command}\n--- exit status {status}, and it prints\n{output}")
        time.sleep(0.1)


# Twenty seconds where nobody else wants the cores, which on a busy machine nobody can promise.
@pytest.mark.timeout(900)
@pytest.mark.envoy
def test_the_quick_start_goes_as_the_page_says(tmp_path: Path) -> None:
    if not apart():
        pytest.skip("the page names ports, and this machine gives nobody a network of his own (unshare)")
    programs = tmp_path / "programs"
    programs.mkdir()
    stand_in = programs / "vllm"
    stand_in.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m tests.typed.vllm "$@"\n')
    stand_in.chmod(0o755)
    (tmp_path / "chat" / "policies").mkdir(parents=True)
    (policy,) = re.findall(r"```yaml\n(.*?)```", START.read_text(), re.DOTALL)
    (tmp_path / "chat" / "policies" / "chat.yaml").write_text(policy)
    typed = set()
    with shell(tmp_path, {"HOME": str(tmp_path)}, apart=True) as opened:
        opened.type(f"ip link set lo up; PATH={programs}:$PATH")
        for line, command in copied(START.read_text()):
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
            if command.startswith("pkill -f "):
                # What is typed next wants their ports, and a machine types faster than they end.
                opened.type("while pgrep -f 'switchgear serve|envoy -c envoy'; do sleep 0.05; done")
            if command.startswith("PYTHONPATH="):
                # The reader's second engine, whose core is the younger one.
                opened.type("until pgrep VLLM::EngineCor; do sleep 0.05; done")
                opened.type(command.replace("8000", "8001"))
    assert typed >= set(EXPECTED), "the page no longer has what is expected here"


def test_all_that_the_readme_shows_is_typed_here_or_says_why_not() -> None:
    assert list(copied(README.read_text())) == []
    assert README.read_text().count("```sh") == README.read_text().count("<!-- not typed: ")


def test_a_block_for_copying_is_typed_line_by_line() -> None:
    page = "a\n\n```sh\nb \\\n  c\nd &\n```\n"
    page += "<!-- not typed: too long -->\n```sh\ne\n```\n```\nf\n```\n```sh\ng\n```\n"
    assert list(copied(page)) == [(4, "b \\\n  c"), (6, "d &"), (16, "g")]
