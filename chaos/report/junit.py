"""Verdicts as JUnit XML: one suite per experiment, one test case per promise.

An unknown result is an ``error``, not ``skipped``: a pipeline that ignores skipped tests would count it as passed.

Source: https://github.com/testmoapp/junitxml (the common format, as CI systems read it).
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final
from xml.etree import ElementTree as ET

from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.experiment_verdict import ExperimentVerdict
from chaos.report.report_rows import measure_rows

# Characters XML 1.0 cannot hold, even escaped: most control characters and lone surrogates.
_INVALID_IN_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(verdicts: Sequence[ExperimentVerdict]) -> str:
    """Render the document."""
    every = [finding for one in verdicts for finding in one.findings]
    root = ET.Element("testsuites", {"name": "switchgear-chaos", **_counts(every)})
    for one in verdicts:
        root.append(_suite(one))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(verdict: ExperimentVerdict) -> ET.Element:
    history = verdict.history
    name = _text(f"{verdict.name} [{verdict.subject}]")
    ended_s = history.began.seconds if history.ended_s is None else history.ended_s
    began_at = datetime.fromtimestamp(history.began.at_unix_s, UTC)
    suite = ET.Element(
        "testsuite",
        {
            "name": name,
            "time": f"{ended_s:.3f}",
            "timestamp": began_at.strftime("%Y-%m-%dT%H:%M:%S"),
            **_counts(verdict.findings),
        },
    )
    properties = ET.SubElement(suite, "properties")
    values = {
        "verdict": verdict.answer.value,
        "seed": str(history.began.seed),
        "time_scale": f"{history.began.time_scale:g}",
        **{f"version {name}": version for name, version in history.began.versions.items()},
        **{row.title: row.cells[0] for row in measure_rows([verdict])},
    }
    for key, value in values.items():
        ET.SubElement(properties, "property", name=_text(key), value=_text(value))
    for finding in verdict.findings:
        suite.append(_case(verdict, finding))
    return suite


def _case(verdict: ExperimentVerdict, finding: CheckFinding) -> ET.Element:
    case = ET.Element(
        "testcase",
        classname=_text(f"{verdict.name}.{verdict.subject}"),
        name=_text(finding.check),
        time="0",
    )
    if finding.answer is CheckResult.YES:
        ET.SubElement(case, "system-out").text = _text(_details(finding))
    else:
        tag = "failure" if finding.answer is CheckResult.NO else "error"
        message = finding.why.partition("; ")[0]
        ET.SubElement(case, tag, message=_text(message), type=finding.answer.value).text = _text(_details(finding))
    return case


def _details(finding: CheckFinding) -> str:
    measured = f"measured: {finding.measured or '-'}; promised: {finding.limit or '-'}"
    when = "" if finding.at_s is None else f"\nfirst at: {finding.at_s:.1f} s"
    return f"{finding.why}\n{measured}{when}"


def _counts(findings: Sequence[CheckFinding]) -> dict[str, str]:
    return {
        "tests": str(len(findings)),
        "failures": str(sum(one.answer is CheckResult.NO for one in findings)),
        "errors": str(sum(one.answer is CheckResult.UNKNOWN for one in findings)),
        "skipped": "0",
    }


def _text(text: str) -> str:
    return _INVALID_IN_XML.sub("�", text)
