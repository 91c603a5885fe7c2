"""The fixtures in a project that is not ours: found there, and plain where they are used wrongly."""

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
    # Theirs has no pytest-asyncio.
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:asyncio", "-p", "no:cacheprovider", *words]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False, timeout=100).stdout


def test_a_foreign_project_has_the_fixtures(tmp_path: Path) -> None:
    said = pytest_there(tmp_path, "--fixtures")
    assert "switchgear_lab -- " in said
    assert "switchgear_experiment -- " in said


def test_what_is_wrong_is_said_in_the_words_of_who_must_act(tmp_path: Path) -> None:
    said = pytest_there(tmp_path)
    assert "write `def test_...`, not `async def`" in said
    assert "nowhere: SG001: there is no such file or folder" in said
    assert "2 failed" in said
