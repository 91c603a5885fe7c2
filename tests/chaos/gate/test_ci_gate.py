"""`verify` as a CI gate: good policies pass, bad ones fail with reasons."""

import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from chaos.processes import ChildProcesses

# One experiment takes 30 s; it is repeated if the machine was too busy for a verdict.
pytestmark = [pytest.mark.envoy, pytest.mark.timeout(900)]

GOOD = Path(__file__).parents[3] / "policies" / "examples" / "single-pool.yaml"
BAD = Path(__file__).with_name("five-retries.yaml")
PASSED, BROKEN, UNKNOWN = 0, 1, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    output: str
    suite: ET.Element

    def cases(self, tag: str) -> dict[str, ET.Element]:
        """Promises reported as ``tag``: failure or error."""
        return {
            str(case.get("name")): found
            for case in self.suite.iter("testcase")
            if (found := case.find(tag)) is not None
        }


async def verified(policies: Path, folder: Path) -> Answer:
    """Result of the gate; repeated while it is unknown."""
    output = ""
    async with ChildProcesses(log_dir=folder) as processes:
        for number in range(6):
            report = folder / f"{number}.xml"
            command = [
                sys.executable,
                "-m",
                "chaos.cli",
                "verify",
                "-f",
                str(policies),
                "--suite",
                "quick",
            ]
            child = await processes.start(f"verify-{number}", [*command, "--junit", str(report)])
            status = await child.wait()
            output = child.log_path.read_text()
            assert status in {PASSED, BROKEN, UNKNOWN}, output
            if status != UNKNOWN:
                (suite,) = ET.parse(report).getroot().iter("testsuite")
                return Answer(status=status, output=output, suite=suite)
    pytest.fail(f"six runs without a verdict:\n{output}")


async def test_example_policies_pass(tmp_path: Path) -> None:
    answer = await verified(GOOD, tmp_path)
    assert answer.status == PASSED, answer.output
    assert int(answer.suite.get("tests", "0")) > 10
    assert not answer.cases("failure")
    assert not answer.cases("error")


async def test_load_amplification_fails_with_its_reason(tmp_path: Path) -> None:
    answer = await verified(BAD, tmp_path)
    assert answer.status == BROKEN, answer.output
    failure = answer.cases("failure")["amplification"]
    # The reason has the measured value, the promise and the cause.
    assert "promised: <= 1.30" in (failure.text or "")
    assert "engine calls" in (failure.text or "")
    assert "amplification BROKEN" in " ".join(answer.output.split())
