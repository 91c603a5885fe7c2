"""JUnit XML: one suite per experiment, failures with reasons, unknown results as errors."""

from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree as ET

from chaos.checks.experiment_verdict import ExperimentVerdict, verdict
from chaos.history.history_events import ConfigReply
from chaos.report.junit import junit_xml
from tests.chaos import history_builders
from tests.chaos.simulated_history import Play, played

PROMISED: Mapping[str, Any] = {"goodputPercent": 80, "amplification": 1.5, "firstTokenP99": "1s"}
SHORT = Play(seconds=16.0, start_s=5.0, end_s=10.0, hypothesis=PROMISED)


def suites(*verdicts: ExperimentVerdict) -> list[ET.Element]:
    return list(ET.fromstring(junit_xml(verdicts)).iter("testsuite"))


def test_experiment_is_a_suite_and_promise_a_case() -> None:
    one = verdict(played(SHORT))
    (suite,) = suites(one)
    assert suite.get("name") == "by-hand [policies/good]"
    assert [case.get("name") for case in suite.iter("testcase")] == [found.check for found in one.findings]
    assert suite.get("tests") == str(len(one.findings))


def test_broken_is_a_failure_and_unknown_an_error() -> None:
    bad = Play(
        seconds=16.0, start_s=5.0, end_s=10.0, hypothesis=PROMISED, left_after_s=None, retries=5, try_timeout_s=0.4
    )
    (suite,) = suites(verdict(played(bad)))
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    (failure,) = cases["amplification"].iter("failure")
    assert "engine calls" in (failure.text or "")
    assert "promised: <= 1.50" in (failure.text or "")
    # Nothing was streamed, so first-token times are unknown.
    assert [one.get("type") for one in cases["firstTokenP99"].iter("error")] == ["unknown"]
    assert not list(cases["processes"].iter("failure"))
    assert int(suite.get("failures", "0")) >= 1
    assert int(suite.get("errors", "0")) >= 1


def test_characters_invalid_in_xml_are_replaced() -> None:
    history = history_builders.history(
        began=history_builders.began(subject="a<b>&\x00\ud800"),
        pushed=[history_builders.pushed(11.0)],
        answered=[
            ConfigReply(at_s=11.1, proxy="p0", type="eds", nonce="1", error="\x1b[31mno\x00 such <cluster> ]]>")
        ],
    )
    (suite,) = suites(verdict(history))
    assert suite.get("name") == "by-hand [a<b>&��]"
    assert any("such <cluster> ]]>" in (one.text or "") for one in suite.iter("failure"))
