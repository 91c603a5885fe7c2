"""An audit without a database differs from one without findings."""

import json

import pytest

from deploy import audit

KNOWN = {"name": "click", "version": "8.5.1", "vulns": []}
BAD = {"name": "old", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"]}]}
UNFIXED = {"name": "odd", "version": "2.0", "vulns": [{"id": "PYSEC-2", "fix_versions": []}]}
SKIPPED = {"name": "ours", "skip_reason": "Dependency not found on PyPI"}


def answer(*packages: object) -> str:
    return json.dumps({"dependencies": packages, "fixes": []})


def test_findings_exit_1_and_name_the_fixed_version() -> None:
    status, lines = audit.verdict(answer(KNOWN, BAD, UNFIXED), "")
    assert status == 1
    assert lines[:2] == ["old 1.0: PYSEC-1, fixed in 1.1", "odd 2.0: PYSEC-2"]
    assert lines[2] == "3 of 3 packages audited, 2 known vulnerabilities"


def test_no_findings_exit_0() -> None:
    assert audit.verdict(answer(KNOWN), "") == (0, ["1 of 1 packages audited, 0 known vulnerabilities"])


def test_packages_unknown_to_the_database_are_listed() -> None:
    status, lines = audit.verdict(answer(KNOWN, SKIPPED), "")
    assert status == 0
    assert lines == ["1 of 2 packages audited, 0 known vulnerabilities", "not audited: ours"]


def test_database_without_packages_is_not_clean() -> None:
    status, lines = audit.verdict(answer(SKIPPED), "No known vulnerabilities found")
    assert status == 0
    assert lines == [f"{audit.UNREACHABLE} (it knows none of 1 packages)"]


@pytest.mark.parametrize(
    "last",
    [
        "requests.exceptions.ProxyError: HTTPSConnectionPool(host='a.example', port=443): Max retries exceeded",
        "ERROR:pip_audit._cli:Tip: your network may be blocking this service.",
    ],
)
def test_unreachable_database_is_reported_with_the_reason(last: str) -> None:
    assert audit.verdict("", f"WARNING: hash\n{last}\n") == (0, [f"{audit.UNREACHABLE} ({last})"])


@pytest.mark.parametrize("remarks", ["packaging.version.InvalidVersion: Invalid version: '='\n", ""])
def test_pip_audit_failure_exits_2(remarks: str) -> None:
    assert audit.verdict("", remarks)[0] == 2
