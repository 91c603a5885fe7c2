"""Scenario files: all problems at once, with location and hint."""

from pathlib import Path

import pytest

from chaos.scenario.scenario_codes import SCENARIO_CODES
from chaos.scenario.scenario_reader import read_scenarios
from policies.findings import PolicyError, PolicyErrors
from policies.origin import line_of
from policies.policy_files import MAX_FILE_BYTES
from policies.yaml_text import MAX_PROBLEMS
from tests.chaos.scenario.conftest import problems_of, written

HANG = "faults:\n- {fault: {kind: hang}, target: {engine: 3}, at: 8s, lasts: 10s}\n"


def errors_of(*paths: Path) -> list[PolicyError]:
    with pytest.raises(PolicyErrors) as caught:
        read_scenarios(paths)
    assert str(caught.value).count("scenario files")
    return [one for one in caught.value.exceptions if isinstance(one, PolicyError)]


def test_sound_file(tmp_path: Path) -> None:
    file = tmp_path / "hang.yaml"
    file.write_text(written(HANG))
    (only,) = read_scenarios([file])
    assert only.name == "rehearsal"
    assert only.experiment().outages[0].targets == ("e3",)


def test_several_documents_in_one_file(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text("---\n" + written(HANG, "one") + "---\n---\n" + written(HANG, "two"))
    assert [one.name for one in read_scenarios([file])] == ["one", "two"]


def test_same_name_in_two_files(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(written(HANG))
    (error,) = errors_of(tmp_path)
    assert error.code == "SC012"
    assert str(error.origin) == f"{tmp_path}/b.yaml:3:18"
    assert f"{tmp_path}/a.yaml:3:18" in error.message


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        (b"", "SG006", "no scenario"),
        (b"# only a comment\n---\n", "SG006", "no scenario"),
        (b"\x00\x01\x02\xff\xfe\x80", "SG010", "UTF-8"),
        (b"PK\x03\x04" + bytes(range(128)), "SG011", ""),
        (b"- a\n- list\n", "SG020", "scenario must be a block"),
        (b"just words", "SG020", "scenario must be a block"),
        (b"kind: Scenario\nspec: {title: 'half", "SG011", ""),
        (b"apiVersion: switchgear.dev/v1alpha1\nkind: Scenari\nmetadata: {name: x}\n", "SG022", "Scenari"),
        (b"[" * 100_000, "SG016", "levels"),
        (b"x" * (MAX_FILE_BYTES + 1), "SG005", "too large for a scenario"),
    ],
    ids=["empty", "comment", "binary", "archive", "list", "text", "half-written", "kind", "deep", "huge"],
)
def test_invalid_file_reports_code_and_message(tmp_path: Path, content: bytes, code: str, says: str) -> None:
    file = tmp_path / "strange.yaml"
    file.write_bytes(content)
    first, *_ = errors_of(file)
    assert first.code == code
    assert says in first.message


def test_truncated_file_is_refused() -> None:
    text = written(HANG + "load: {percent: 80}\nhypothesis: {goodputPercent: 99}\n")
    lines = text.splitlines(keepends=True)
    # A truncated file may still be a valid scenario if the incident is complete.
    for end in range(1, len(lines) - 6):
        assert problems_of("".join(lines[:end])), end


def test_policy_is_not_a_scenario(tmp_path: Path) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text(Path("policies/examples/single-pool.yaml").read_text())
    errors = errors_of(file)
    assert {one.code for one in errors} == {"SG022"}
    assert all("-f" in one.hint for one in errors)


def test_missing_paths_and_empty_folder_are_reported(tmp_path: Path) -> None:
    assert [one.code for one in errors_of(tmp_path / "none.yaml", tmp_path)] == ["SG006", "SG001"]
    assert "scenario file" in errors_of(tmp_path)[0].message


def test_all_problems_are_reported_with_their_location() -> None:
    text = written(
        "lasts: 30\nfaults:\n- fault: {kind: hng}\n  at: 8s\n  lasts: 1s\n"
        "- {fault: {delay: 8s}, at: 8s, lasts: 1s}\n"
        "- {fault: {kind: hang, healt: ok, hang: 4}, at: 8s, lasts: 1s}\n"
        "- {fault: {kind: hang, health: maybe}, at: 8s}\n- {fault: hang, at: 1s, lasts: 1s}\n"
        "hypothesis: {goodputPercent: 120}\n"
    )
    told = {(one.path, one.code, line_of(one.at)) for one in problems_of(text)}
    assert told == {
        ("spec.lasts", "SG027", 7),
        ("spec.faults[0].fault.kind", "SG026", 9),
        ("spec.faults[1].fault.kind", "SG024", 12),
        ("spec.faults[2].fault.healt", "SG023", 13),
        ("spec.faults[2].fault.hang", "SG023", 13),
        ("spec.faults[3].fault.health", "SG026", 14),
        ("spec.faults[3].lasts", "SG024", 14),
        ("spec.faults[4].fault", "SG025", 15),
        ("spec.hypothesis.goodputPercent", "SG026", 16),
    }
    by_path = {one.path: one for one in problems_of(text)}
    assert by_path["spec.faults[0].fault.kind"].hint == "did you mean hang?"
    assert by_path["spec.faults[2].fault.healt"].hint == "did you mean health?"
    assert by_path["spec.faults[2].fault.healt"].allowed == "kind, health"
    assert by_path["spec.faults[4].fault"].hint == "write {kind: hang}"


def test_thousands_of_problems_are_capped(tmp_path: Path) -> None:
    file = tmp_path / "many.yaml"
    file.write_text(written("faults:\n" + "- {at: 1s, lasts: 1s}\n" * 5000))
    assert len(errors_of(file)) <= MAX_PROBLEMS + 1


@pytest.mark.parametrize("code", [one for one in SCENARIO_CODES.values() if one.example], ids=lambda one: one.code)
def test_code_examples_raise_their_code(code: object) -> None:
    one = next(known for known in SCENARIO_CODES.values() if known is code)
    text = written(one.example)
    if one.code == "SC012":
        assert one.code in {found.code for found in problems_of(text)}
    else:
        assert {found.code for found in problems_of(text)} == {one.code}


def test_trace_problems_are_reported(tmp_path: Path) -> None:
    (tmp_path / "arrivals.csv").write_text("at_s,streaming\n1.0,maybe\n-4,true\n")
    problems = problems_of(written("load: {trace: arrivals.csv}"), tmp_path)
    assert {one.code for one in problems} == {"SC013"}
    assert len(problems) == 2
    assert all(line_of(one.at) == 7 and "arrivals.csv" in one.message for one in problems)


@pytest.mark.parametrize(
    ("callers", "promise", "code"),
    [
        ("[{name: a, timesQuota: 0.5}]", "quotaErrorPercent: 10", "SC011"),
        ("[{name: a, timesQuota: 2}]", "callerGoodputPercent: 99", "SC011"),
        ("[{name: a, timesService: 0.3}]", "callerGoodputPercent: 99", "SC011"),
        ("[{name: a, timesService: 0.5}]", "hopelessRefusedPercent: 85", "SC011"),
        ("[{name: a, timesQuota: 2}, {name: a, timesQuota: 0.5}]", "quotaErrorPercent: 10", "SC012"),
        ("[{name: a, timesQuota: 2}, {name: b, timesQuota: 0.5}]", "quotaErrorPercent: 10", ""),
        ("[{name: a, timesService: 0.3}, {name: b}]", "{callerGoodputPercent: 9, hopelessRefusedPercent: 8}", ""),
    ],
)
def test_promise_about_callers_needs_such_a_group(callers: str, promise: str, code: str) -> None:
    promised = promise if promise.startswith("{") else f"{{{promise}}}"
    text = written(f"load: {{callers: {callers}}}\nhypothesis: {promised}\n")
    if code:
        assert {one.code for one in problems_of(text)} == {code}
    else:
        assert problems_of(text) == ()
