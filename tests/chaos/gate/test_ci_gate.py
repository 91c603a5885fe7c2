"""The gate of a pipeline, end to end: good policies pass, and what must not ship is stopped with its reasons."""

import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from chaos.processes import ChildProcesses

# Half a minute of experiment; several times where the machine was too busy for it to show anything.
pytestmark = [pytest.mark.envoy, pytest.mark.timeout(900)]

GOOD = Path(__file__).parents[3] / "policies" / "examples" / "single-pool.yaml"
BAD = Path(__file__).with_name("five-retries.yaml")
PASSED, BROKEN, NOT_KNOWN = 0, 1, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    said: str
    suite: ET.Element

    def cases(self, tag: str) -> dict[str, ET.Element]:
        """Promises that came out as ``tag``: failure or error."""
        return {
            str(case.get("name")): found
            for case in self.suite.iter("testcase")
            if (found := case.find(tag)) is not None
        }


async def verified(policies: Path, folder: Path) -> Answer:
    """What the gate says; asked again where it does not know."""
    said = ""
    async with ChildProcesses(log_dir=folder) as processes:
        for number in range(6):
            report = folder / f"{number}.xml"
            command = [
                sys.executable,
                "-m",
                "chaos.cli",
                "verify",
                "--policies",
                str(policies),
                "--suite",
                "quick",
            ]
            child = await processes.start(f"verify-{number}", [*command, "--junit", str(report)])
            status = await child.wait()
            said = child.log_path.read_text()
            assert status in {PASSED, BROKEN, NOT_KNOWN}, said
            if status != NOT_KNOWN:
                (suite,) = ET.parse(report).getroot().iter("testsuite")
                return Answer(status=status, said=said, suite=suite)
    pytest.fail(f"six times it could not be told:\n{said}")


async def test_what_the_examples_say_passes(tmp_path: Path) -> None:
    answer = await verified(GOOD, tmp_path)
    assert answer.status == PASSED, answer.said
    assert int(answer.suite.get("tests", "0")) > 10
    assert not answer.cases("failure")
    assert not answer.cases("error")


async def test_what_multiplies_load_is_stopped_and_told_why(tmp_path: Path) -> None:
    answer = await verified(BAD, tmp_path)
    assert answer.status == BROKEN, answer.said
    failure = answer.cases("failure")["amplification"]
    # A number, the promise, and words that say what multiplied it.
    assert "promised: <= 1.30" in (failure.text or "")
    assert "calls at engines" in (failure.text or "")
    assert "amplification BROKEN" in " ".join(answer.said.split())
