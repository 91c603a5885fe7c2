"""An audit that asked nobody is told apart from one that found nothing."""

import json

import pytest

from deploy import audit

KNOWN = {"name": "click", "version": "8.5.1", "vulns": []}
BAD = {"name": "old", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"]}]}
UNFIXED = {"name": "odd", "version": "2.0", "vulns": [{"id": "PYSEC-2", "fix_versions": []}]}
SKIPPED = {"name": "ours", "skip_reason": "Dependency not found on PyPI"}


def answer(*packages: object) -> str:
    return json.dumps({"dependencies": packages, "fixes": []})


def test_findings_are_a_no_and_each_is_told_with_its_mending() -> None:
    status, lines = audit.verdict(answer(KNOWN, BAD, UNFIXED), "")
    assert status == 1
    assert lines[:2] == ["old 1.0: PYSEC-1, mended in 1.1", "odd 2.0: PYSEC-2"]
    assert lines[2] == "3 of 3 packages looked at, 2 known vulnerabilities"


def test_nothing_found_is_a_yes() -> None:
    assert audit.verdict(answer(KNOWN), "") == (0, ["1 of 1 packages looked at, 0 known vulnerabilities"])


def test_what_the_database_does_not_know_is_named() -> None:
    status, lines = audit.verdict(answer(KNOWN, SKIPPED), "")
    assert status == 0
    assert lines == ["1 of 2 packages looked at, 0 known vulnerabilities", "not looked at: ours"]


def test_a_database_that_knows_nothing_is_not_taken_for_a_clean_one() -> None:
    status, lines = audit.verdict(answer(SKIPPED), "No known vulnerabilities found")
    assert status == 0
    assert lines == [f"{audit.UNREACHABLE} (what answers knows none of 1 packages)"]


@pytest.mark.parametrize(
    "last",
    [
        "requests.exceptions.ProxyError: HTTPSConnectionPool(host='a.example', port=443): Max retries exceeded",
        "ERROR:pip_audit._cli:Tip: your network may be blocking this service.",
    ],
)
def test_a_database_out_of_reach_is_said_with_the_reason(last: str) -> None:
    assert audit.verdict("", f"WARNING: hash\n{last}\n") == (0, [f"{audit.UNREACHABLE} ({last})"])


@pytest.mark.parametrize("remarks", ["packaging.version.InvalidVersion: Invalid version: '='\n", ""])
def test_a_pip_audit_that_fails_is_neither_clean_nor_out_of_reach(remarks: str) -> None:
    assert audit.verdict("", remarks)[0] == 2
