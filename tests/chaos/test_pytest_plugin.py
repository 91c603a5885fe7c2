"""The pytest fixtures in another project: discovered, with clear usage errors."""

import subprocess
import sys
from pathlib import Path

THEIRS = """\
import asyncio


def test_of_a_coroutine(switchgear_experiment):
    async def body():
        switchgear_experiment("quick", "envoy")

    asyncio.run(body())


def test_of_no_policies(switchgear_experiment):
    switchgear_experiment("quick", "nowhere")
"""


def pytest_there(folder: Path, *words: str) -> str:
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers --strict-config\n")
    (folder / "test_theirs.py").write_text(THEIRS)
    # That project has no pytest-asyncio.
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:asyncio", "-p", "no:cacheprovider", *words]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False, timeout=100).stdout


def test_other_project_sees_the_fixtures(tmp_path: Path) -> None:
    output = pytest_there(tmp_path, "--fixtures")
    assert "switchgear_lab -- " in output
    assert "switchgear_experiment -- " in output


def test_misuse_reports_the_fix(tmp_path: Path) -> None:
    output = pytest_there(tmp_path)
    assert "write `def test_...`, not `async def`" in output
    assert "nowhere: SG001: no such file or folder" in output
    assert "2 failed" in output
