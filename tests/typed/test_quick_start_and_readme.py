"""Types the blocks of quick start and README verbatim into one shell, on the ports they name.

Programs are real, Envoys and agents included; vLLM is a stand-in. They come from an environment that the page's
own commands make: pip installs the wheel with what its metadata asks for. Separate network and process namespaces
isolate them from this machine, so pip reads a folder of packages: those that it downloaded before, or those that
are installed here. Blocks that cannot be typed state the reason in the page.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest

from deploy.licences import required_packages
from tests.deploy.installed_wheels import write_wheels
from tests.shell import LIMIT_S, ROOT, Shell, apart, shell
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
    "pip install": Expected(),
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


NOT_APART: Final = "the page names ports, and this machine forbids network namespaces (unshare)"

IMPORT_ALL: Final = """\
import importlib, pkgutil, sys, warnings
warnings.simplefilter("ignore")
absent = set()
for package in sys.argv[1:]:
    folder = importlib.import_module(package).__path__
    for module in pkgutil.walk_packages(folder, package + "."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                absent.add(error.name.partition(".")[0])
print(*sorted(absent))
"""
"""Import each module; print the packages that are not there."""

OF_EXTRAS: Final = ["jinja2", "numpy", "opentelemetry", "pytest", "scipy"]
"""What modules import at once that ``[envoy]`` does not bring: other extras, and pytest, which loads a plugin."""


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


@contextmanager
def newcomer(folder: Path, packages: Path) -> Iterator[Shell]:
    """A shell in a home folder with the wheel, on whose path nothing of the checkout is."""
    programs = folder / "programs"
    programs.mkdir()
    # Run as a file, from outside: what it imports is the wheel's.
    stand_in = programs / "vllm"
    stand_in.write_text(f'#!/bin/sh\nexec python {ROOT}/tests/typed/vllm.py "$@"\n')
    stand_in.chmod(0o755)
    of_the_system = [one for one in os.environ["PATH"].split(":") if Path(one) != Path(sys.executable).parent]
    path = [str(programs), f"{sys.base_prefix}/bin", *of_the_system]
    (policy,) = re.findall(r"```yaml\n(.*?)```", START.read_text(), re.DOTALL)
    (folder / "chat" / "policies").mkdir(parents=True)
    (folder / "chat" / "policies" / "chat.yaml").write_text(policy)
    settings = {"HOME": str(folder), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(packages), "PYTHONPATH": ""}
    with shell(folder, settings, apart=True) as opened:
        opened.type(f"ip link set lo up; PATH={':'.join(path)}")
        for program in ("switchgear", "switchgear-agent", "switchgear-chaos", "envoy"):
            assert opened.typed(f"command -v {program}")[0] != 0, f"{program} is there before it is installed"
        yield opened


def check_installation(folder: Path, opened: Shell) -> None:
    """Programs and packages are the wheel's, and all that they need came with it."""
    for program in ("switchgear", "switchgear-agent", "switchgear-chaos", "envoy"):
        assert opened.type(f"command -v {program}").strip() == str(folder / "switchgear" / "bin" / program)
    for package in PACKAGES:
        found = opened.type(f"python -c 'import {package}; print({package}.__path__[0])'")
        assert Path(found.strip()).is_relative_to(folder / "switchgear"), found
    assert opened.typed("pip check") == (0, "No broken requirements found.\n")


def type_page(page: str, folder: Path, opened: Shell) -> set[str]:
    """Type the blocks of a page, or of its beginning; return the expectations that were met."""
    typed = set()
    for line, command in copied(page):
        name = next((one for one in EXPECTED if command.startswith(one)), None)
        if name == "switchgear status" and name in typed:
            become(START, line, command, SECURED, opened)
        else:
            become(START, line, command, EXPECTED[name] if name else Expected(), opened)
        if name is not None:
            typed.add(name)
        if name == "pip install":
            check_installation(folder, opened)
        if name == "switchgear why one":
            (asked,) = steps(README.read_text())
            assert command.startswith(asked.command)
            give_up_at = time.monotonic() + LIMIT_S
            while not shown(asked, output := opened.type(asked.command)):
                assert time.monotonic() < give_up_at, output
        if command.startswith("curl --retry 600"):
            become(START, line, "switchgear status", VLLM, opened)
    return typed


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with the wheel alone."""
    return built_wheel(tmp_path / "home").parent


# Takes a minute on an idle machine, longer on a busy one.
@pytest.mark.timeout(900)
@pytest.mark.envoy
@pytest.mark.skipif(not apart(), reason=NOT_APART)
def test_quick_start_commands_work(tmp_path: Path, home: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    write_wheels(required_packages(extras=frozenset({"envoy"})), packages)
    with newcomer(home, packages) as opened:
        typed = type_page(START.read_text().replace("MODEL", MODEL), home, opened)
        (home / "imports.py").write_text(IMPORT_ALL)
        assert opened.type("python ~/imports.py " + " ".join(PACKAGES)).split() == OF_EXTRAS
    assert typed == set(EXPECTED), "the page no longer has what is expected here"


@pytest.fixture
def newest(tmp_path: Path, home: Path) -> Path:
    """A folder of the packages that pip chooses today for the wheel, from the index or cache that it is set to."""
    folder = tmp_path / "packages"
    download = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--dest",
        folder,
    ]
    # A small one first: an index that has it has to have the others.
    probe = subprocess.run(
        [*download, "--no-deps", "--retries", "1", "--timeout", "20", "click"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if probe.returncode != 0:
        pytest.skip(f"pip has no index here: {probe.stderr.strip().splitlines()[-1]}")
    (wheel,) = home.glob("*.whl")
    done = subprocess.run([*download, f"{wheel}[envoy]"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


# The page promises five minutes from the installation to the answer; downloads come before.
@pytest.mark.timeout(300, func_only=True)
@pytest.mark.envoy
@pytest.mark.skipif(not apart(), reason=NOT_APART)
def test_five_minutes_from_the_wheel_with_the_newest_packages(home: Path, newest: Path) -> None:
    first, end, _ = START.read_text().partition("\n## One agent per engine")
    assert end
    with newcomer(home, newest) as opened:
        typed = type_page(first, home, opened)
    assert typed >= {"pip install", "curl ", "switchgear why one", "switchgear-agent drain"}


def test_readme_blocks_are_tested_or_exempted() -> None:
    assert list(copied(README.read_text())) == []
    assert README.read_text().count("```sh") == README.read_text().count("<!-- not typed: ")


def test_copyable_block_is_typed_line_by_line() -> None:
    page = "a\n\n```sh\nb \\\n  c\nd &\n```\n"
    page += "<!-- not typed: too long -->\n```sh\ne\n```\n```\nf\n```\n```sh\ng\n```\n"
    assert list(copied(page)) == [(4, "b \\\n  c"), (6, "d &"), (16, "g")]
