"""The page of tested versions: its results, and that it agrees with what the project declares and pins."""

import json
from pathlib import Path

import pytest

from deploy import compatibility
from deploy.compatibility import PartResult, minor
from tests import cluster_parts, every_envoy, mesh_parts, part_results
from xds_server.diagnosis.process_checks import LEAST, OLDEST_ENVOY
from xds_server.model.software_version import parsed_version

KNOWN = compatibility.known_results()


def versions(product: str) -> list[str]:
    return [one.version for one in KNOWN if one.product == product]


def result(version: str, outcome: str = "passed", **fields: object) -> PartResult:
    about = {"product": "envoy", "version": version, "outcome": outcome, "day": "2026-11-23", **fields}
    return compatibility.from_json(about)


def test_every_supported_minor_of_envoy_is_pinned_and_has_a_result() -> None:
    newest = parsed_version(compatibility.newest_envoy())
    pinned = [*every_envoy.OLDER, compatibility.newest_envoy()]
    wanted = [(OLDEST_ENVOY[0], one) for one in range(OLDEST_ENVOY[1], newest[1] + 1)]
    assert [parsed_version(one)[:2] for one in pinned] == wanted
    assert versions("envoy") == pinned, "run CI's steps, then `make compatibility`"


def test_pinned_versions_of_kubernetes_and_vllm_have_results() -> None:
    pinned = {cluster_parts.version(one).removeprefix("v") for one in cluster_parts.RELEASES}
    assert set(versions("kubernetes")) == pinned
    assert versions("vllm") == [compatibility.locked_vllm()]
    for part in mesh_parts.PARTS.values():
        assert versions(part.product) == [part.version]
    for peer in compatibility.PEERS:
        assert versions(peer) == [compatibility.locked_peer(peer)]
    declared = compatibility.supported()
    oldest = cluster_parts.version("oldest").removeprefix("v")
    assert declared["kubernetes"] == f"{minor(oldest)} and later"


def test_results_of_python_and_kubectl_are_of_declared_versions() -> None:
    assert versions("python")
    assert all(parsed_version(one) >= LEAST["python"] for one in versions("python"))
    assert compatibility.supported()["python"] == f"{'.'.join(map(str, LEAST['python']))} and later"
    assert versions("kubectl")


def test_committed_results_hold_no_failure_and_each_skip_has_a_reason() -> None:
    assert {one.outcome for one in KNOWN} <= {"passed", "skipped"}
    assert all(one.reason for one in KNOWN if one.outcome == "skipped")
    assert all(one.passed and one.tests for one in KNOWN if one.outcome == "passed")


@pytest.mark.parametrize(
    ("one", "line"),
    [
        (result("1.36.4", passed=7), "Envoy 1.36.4: passed (7 tests)"),
        (result("1.36.4", passed=7, skipped=2), "Envoy 1.36.4: passed (7 tests, 2 skipped)"),
        (result("1.36.4", "skipped", reason="no network"), "Envoy 1.36.4: SKIPPED: no network"),
        (result("1.36.4", "failed", passed=7), "Envoy 1.36.4: FAILED"),
    ],
)
def test_result_is_one_line(one: PartResult, line: str) -> None:
    assert str(one) == line
    assert compatibility.from_json(json.loads(json.dumps(compatibility.as_json(one)))) == one


def test_another_patch_replaces_the_result_of_its_minor() -> None:
    known = [result("1.36.4"), result("1.37.0")]
    assert compatibility.merged(known, [result("1.37.1", "skipped", reason="x"), result("1.9.0")]) == [
        result("1.9.0"),
        result("1.36.4"),
        result("1.37.1", "skipped", reason="x"),
    ]


def test_page_has_a_row_for_each_result() -> None:
    page = compatibility.page([result("1.36.4", "skipped", reason="no network")])
    assert "| 1.36.4 | skipped: no network | none | 2026-11-23 |" in page


def test_recorded_results_are_taken_and_a_failure_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compatibility, "RESULTS", tmp_path / "committed.json")
    monkeypatch.setenv(part_results.FOLDER_VARIABLE, str(tmp_path / "ran"))
    assert compatibility.main(tmp_path / "ran", print_only=False) == 1, "no results"
    skipped = part_results.recorded_skip("kubernetes", "v1.30.14", "not built")
    part_results.record(result("1.36.4", passed=1, tests=["tests"]))
    assert compatibility.main(tmp_path / "ran", print_only=True) == 0
    assert not (tmp_path / "committed.json").exists()
    assert compatibility.main(tmp_path / "ran", print_only=False) == 0
    assert compatibility.known_results() == [result("1.36.4", passed=1, tests=["tests"]), skipped]
    before = (tmp_path / "committed.json").read_text()
    capsys.readouterr()
    part_results.record(result("1.36.4", "failed"))
    assert compatibility.main(tmp_path / "ran", print_only=False) == 1
    assert (tmp_path / "committed.json").read_text() == before
    assert capsys.readouterr().out.splitlines() == [
        "Envoy 1.36.4: FAILED",
        "Kubernetes API server 1.30.14: SKIPPED: not built",
    ]


def test_envoy_that_cannot_be_installed_is_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(part_results.FOLDER_VARIABLE, str(tmp_path / "ran"))
    monkeypatch.setattr(every_envoy, "ROOT", tmp_path)
    monkeypatch.setattr(every_envoy, "OLDER", ("1.0.0",))
    monkeypatch.setattr(
        every_envoy, "run", lambda version, _folder, _arguments: [f"Envoy {version}: passed (1 tests)"]
    )
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert every_envoy.main([]) == 0
    skipped, newest = capsys.readouterr().out.splitlines()
    assert skipped.startswith("Envoy 1.0.0: SKIPPED: pip: ")
    assert newest == f"Envoy {compatibility.newest_envoy()}: passed (1 tests)"


def test_failing_envoy_prints_what_pytest_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(every_envoy, "RUN", ("-c", "print('three lines of it'); raise SystemExit(1)"))
    printed, verdict = every_envoy.run("1.40.0", None, ())
    assert "three lines of it" in printed
    assert verdict == "Envoy 1.40.0: FAILED"
