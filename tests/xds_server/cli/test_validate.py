"""``switchgear validate``: its answers, their forms and its exit codes."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from policies.codes import CODES
from policies.policy_files import MAX_FILE_BYTES
from xds_server.cli import main

SOUND = (Path(__file__).parents[3] / "policies" / "examples" / "three-zones.yaml").read_text()
BAD = SOUND.replace("serviceTime: 6s", "servicetime: 6s").replace("maxWait: 3s", "maxWait: 3")
ADVISED = SOUND.replace("maxWait: 3s", "maxWait: 3s\n  retries: {attempts: 9}")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "policy.yaml"


def _is_policy(argument: str | Path) -> bool:
    return isinstance(argument, Path) or argument == "-" or "/" in argument or argument.endswith(".yaml")


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    named = [one for argument in arguments for one in (("-f", argument) if _is_policy(argument) else (argument,))]
    code = main(["validate", *map(str, named)])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ("text", "flags", "code"),
    [
        (SOUND, [], 0),
        (SOUND, ["--strict"], 0),
        (ADVISED, [], 0),
        (ADVISED, ["--strict"], 1),
        (BAD, [], 1),
        ("", [], 1),
    ],
)
@pytest.mark.parametrize("output", ["text", "json", "sarif"])
def test_exit_codes(
    capsys: pytest.CaptureFixture[str], file: Path, text: str, flags: list[str], code: int, output: str
) -> None:
    file.write_text(text)
    assert run(capsys, file, "--output", output, *flags)[0] == code


def test_usage_errors_exit_2(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    assert run(capsys)[0] == 2
    assert run(capsys, file)[0] == 2  # there is no such file
    assert run(capsys, file, "--output", "xml")[0] == 2
    file.write_text(BAD)
    assert run(capsys, file, "/nowhere/at/all")[0] == 1


def test_stdin_is_validated(
    capsys: pytest.CaptureFixture[str], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def piped(text: str, *arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return run(capsys, *arguments)

    assert piped(SOUND, "-")[0] == 0
    code, out, _ = piped(BAD, "-")
    assert code == 1
    assert "<stdin>:" in out
    assert piped("", "-")[0] == 1
    pool, _, rest = SOUND.partition("---\n")
    file.write_text(pool)
    assert run(capsys, file)[1] != piped(rest, "-", file)[1], "together with files"
    assert piped("#" * (MAX_FILE_BYTES + 1), "-")[1].count("SG005") == 1


def test_text_has_the_location_the_line_a_caret_and_a_fix(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    file.write_text(BAD)
    _, out, err = run(capsys, file)
    assert err == ""
    assert f"{file}:10:3: error SG023: spec.servicetime: unknown field" in out
    assert "     10 |   servicetime: 6s\n        |   ^^^^^^^^^^^\n" in out
    assert "hint:    did you mean serviceTime?" in out
    assert "allowed: a duration, at least 0s, at most 1h" in out
    assert out.endswith("2 errors in 1 file\n")


def test_text_of_what_is_valid(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    file.write_text(SOUND.replace("v1alpha1", "v1beta1"))
    assert run(capsys, file) == (0, "valid: 1 pool, 1 route, 1 policy; 0 warnings\n", "")
    file.write_text(ADVISED)
    out = run(capsys, file)[1]
    assert "warning SG110: spec.retries.attempts: pool chat: worst case" in out
    assert "hint:    lower retries.attempts to 3" in out


def test_note_about_the_older_version_passes_strict(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    file.write_text(SOUND)
    code, out, err = run(capsys, file, "--strict")
    assert (code, err) == (0, "")
    assert out.startswith(f"{file}:3:13: note SG199: apiVersion: 3 of 3 documents use switchgear.dev/v1alpha1")
    assert out.endswith("\n\nvalid: 1 pool, 1 route, 1 policy; 0 warnings\n")
    answer = json.loads(run(capsys, file, "-o", "json")[1])
    assert [(one["level"], one["code"], one["line"]) for one in answer["notes"]] == [("note", "SG199", 3)]
    (only,) = json.loads(run(capsys, file, "-o", "sarif")[1])["runs"]
    assert [one["level"] for one in only["results"]] == ["note"]
    assert [one["defaultConfiguration"]["level"] for one in only["tool"]["driver"]["rules"]] == ["note"]


def test_long_lists_are_capped_with_a_count(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"{number:02}.yaml").write_text("[]\n")
    out = run(capsys, tmp_path)[1]
    assert out.count("error SG020") == 50
    assert "... and 10 more (--all shows them)" in out
    assert "60 errors in 60 files" in out
    assert run(capsys, tmp_path, "--all")[1].count("error SG020") == 60


def test_hostile_text_does_not_reach_the_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[31m.yaml"
    path.write_text('kind: "\\e[2J"\napiVersion: x\u202e\n"\\x1b[2J": ' + "y" * 100_000 + "\n")
    code, out, _ = run(capsys, tmp_path)
    assert code == 1
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert max(map(len, out.splitlines())) < 400


def test_a_place_is_one_line_and_a_line_of_windows_ends_where_it_ends(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "a\nb.yaml").write_bytes(b"kind: EnginPool\r\n")
    _, out, err = run(capsys, tmp_path)
    said = (out + err).splitlines()
    assert said[0].startswith(f"{tmp_path}/a\N{REPLACEMENT CHARACTER}b.yaml:1:1: error")
    assert "      1 | kind: EnginPool" in said


def test_undecodable_file_names_are_reported(tmp_path: Path) -> None:
    path = Path(bytes(tmp_path).decode() + "/caf\udce9.yaml")
    path.write_text("[]")
    for output in ("text", "json", "sarif"):
        command = [
            sys.executable,
            "-c",
            "from xds_server.cli import entry; entry()",
            "validate",
            "-f",
            str(tmp_path),
        ]
        done = subprocess.run([*command, "--output", output], capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (1, b"")
        assert b"SG020" in done.stdout


def test_json_has_everything(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    file.write_text(BAD)
    answer = json.loads(run(capsys, file, "-o", "json")[1])
    assert not answer["valid"]
    assert answer["warnings"] == []
    assert answer["errors"][0] == {
        "level": "error",
        "code": "SG023",
        "file": str(file),
        "line": 10,
        "column": 3,
        "path": "spec.servicetime",
        "message": 'unknown field "servicetime"',
        "found": "servicetime",
        "allowed": answer["errors"][0]["allowed"],
        "hint": "did you mean serviceTime?",
    }
    file.write_text(ADVISED)
    answer = json.loads(run(capsys, file, "--output", "json")[1])
    assert (answer["valid"], answer["pools"], answer["errors"]) == (True, ["chat"], [])
    assert [one["code"] for one in answer["warnings"]] == ["SG110"]


def shape(run: dict[str, Any]) -> None:
    """What SARIF 2.1.0 requires of a run, as far as code hosts read it."""
    driver = run["tool"]["driver"]
    assert driver["name"] == "switchgear"
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in {"error", "warning", "note", "none"}
        assert result["message"]["text"]
        for location in result.get("locations", ()):
            place = location["physicalLocation"]
            assert " " not in place["artifactLocation"]["uri"]
            region = place.get("region", {"startLine": 1, "startColumn": 1})
            assert min(region["startLine"], region["startColumn"]) >= 1


@pytest.mark.parametrize("text", [SOUND, BAD, ADVISED, "", "\xff"])
def test_sarif_has_the_shape_of_sarif(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a policy.yaml").write_text(text, encoding="latin-1")
    log = json.loads(run(capsys, "a policy.yaml", "--output", "sarif")[1])
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-2.1.0.json")
    (only,) = log["runs"]
    shape(only)
    if text == BAD:
        first = only["results"][0]
        assert first["locations"][0]["physicalLocation"] == {
            "artifactLocation": {"uri": "a%20policy.yaml"},
            "region": {"startLine": 10, "startColumn": 3},
        }
        assert only["tool"]["driver"]["rules"][0]["shortDescription"]["text"] == CODES["SG023"].title


def test_validate_starts_without_grpc_or_envoy(file: Path) -> None:
    file.write_text(SOUND)
    text = (
        "import sys; from xds_server.cli import main; code = main(sys.argv[1:]); "
        "heavy = {name.partition('.')[0] for name in sys.modules} & {'grpc', 'envoy_data_plane', 'aiohttp'}; "
        "sys.exit(code or (f'imported {heavy}' if heavy else 0))"
    )
    subprocess.run([sys.executable, "-c", text, "validate", "-f", str(file)], check=True, capture_output=True)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_named_in_one_line(file: Path) -> None:
    file.write_text(SOUND)
    text = "from xds_server.cli import entry; entry()"
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", text, "validate", "-f", str(file)],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (done.returncode, done.stderr) == (2, b"Error: cannot write the output: No space left on device\n")


def test_ascii_terminal_gets_an_answer(tmp_path: Path) -> None:
    file = tmp_path / "日.yaml"
    file.write_text("kind: [")
    switchgear = str(Path(sys.executable).with_name("switchgear"))
    done = subprocess.run(
        [switchgear, "validate", "-f", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )
    assert (done.returncode, "Traceback" in done.stderr, "/?.yaml:1" in done.stdout + done.stderr) == (
        1,
        False,
        True,
    )


def test_deep_adds_the_consequences_of_playing_the_policies(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    file.write_text(SOUND.replace("maxWait: 3s", "maxWait: 3s\n    maxConnections: 1"))
    code, out, _ = run(capsys, file, "--deep")
    assert code == 0
    assert "warning SG180: spec.limits.maxConnections: pool chat: with maxConnections 1 this pool serves" in out
    assert f"{file}:" in out
    code, out, _ = run(capsys, file, "--deep", "--strict", "-o", "json")
    assert code == 1
    found = json.loads(out)
    assert found["unplayed"] == {}
    assert "SG180" in {one["code"] for one in found["warnings"]}
    _, out, _ = run(capsys, file, "-o", "json")
    assert "SG180" not in out, "without --deep nothing is played"


def test_deep_names_pools_that_were_not_played(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    file.write_text(SOUND.partition("\n---\n")[0])
    _, _, error = run(capsys, file, "--deep")
    assert "pool chat was not played: " in error
