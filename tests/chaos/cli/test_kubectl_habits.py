"""``switchgear-chaos`` with kubectl's habits: get, describe, -o, -f -, suggestions, completion, Ctrl-C."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from chaos.cli import main
from chaos.scenario.scenario_library import scenario_library
from chaos.scenario.scenario_schema import fault_kinds
from chaos.testbed.subjects import combined_subjects

EXAMPLE = Path(__file__).parents[3] / "policies" / "examples" / "single-pool.yaml"


def out_of(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(argv) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("kind", ["scenarios", "scenario", "sc"])
def test_get_lists_scenarios_by_any_type_name(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = out_of(capsys, "get", kind).splitlines()
    assert lines[0].split() == ["NAME", "DURATION", "SUITE", "TITLE"]
    assert [line.split()[0] for line in lines[1:]] == list(scenario_library())


def test_get_lists_faults(capsys: pytest.CaptureFixture[str]) -> None:
    lines = out_of(capsys, "get", "faults", "--no-headers").splitlines()
    assert [line.split()[0] for line in lines] == list(fault_kinds())


@pytest.mark.parametrize("words", [("fault", "hang", "slow"), ("fault/hang", "fl/slow")])
def test_get_takes_names_after_the_type_or_with_it(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert out_of(capsys, "get", *words, "-o", "name") == "fault/hang\nfault/slow\n"


def test_get_prints_data(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(out_of(capsys, "get", "scenario", "quick", "-o", "json"))
    assert found == yaml.safe_load(out_of(capsys, "get", "scenario", "quick", "-o", "yaml"))
    assert [one["metadata"]["name"] for one in found["scenarios"]] == ["quick"]
    path = "jsonpath={.scenarios[*].metadata.name}"
    assert out_of(capsys, "get", "sc", "quick", "half-crash", "-o", path) == "quick half-crash\n"
    columns = "custom-columns=WHAT:.name,TARGET:.target"
    assert out_of(capsys, "get", "fault", "hang", "-o", columns).splitlines() == ["WHAT  TARGET", "hang  engines"]


def test_get_selects_by_label(capsys: pytest.CaptureFixture[str]) -> None:
    standard = out_of(capsys, "get", "sc", "-l", "suite=standard", "-o", "name").split()
    assert {"scenario/half-hangs", "scenario/zone-loss"} <= set(standard)
    assert "scenario/quick" not in standard
    assert out_of(capsys, "get", "faults", "-l", "target=zones", "-o", "name") == "fault/partition\n"
    assert main(["get", "faults", "-l", "zone=a"]) == 2
    assert "fields: name, target" in capsys.readouterr().err


def test_get_wide_has_more_columns(capsys: pytest.CaptureFixture[str]) -> None:
    header = out_of(capsys, "get", "scenarios", "-o", "wide").splitlines()[0]
    assert header.split()[-3:] == ["LOAD", "FAULTS", "INCIDENT"]


@pytest.mark.parametrize("columns", [40, 80])
def test_get_fits_the_terminal_and_keeps_names(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = out_of(capsys, "get", "scenarios").splitlines()
    assert max(map(len, lines)) <= columns
    assert "quick" in {line.split()[0] for line in lines}


def test_get_keeps_rows_whole_on_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert "…" not in out_of(capsys, "get", "scenarios", "-o", "wide")


def test_describe_shows_a_scenario_and_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    text = out_of(capsys, "describe", "scenario", "quick")
    assert "Duration:  27s" in text
    assert "goodputPercent: 80" in text
    assert "Settings:" in out_of(capsys, "describe", "fault/hang")


def test_describe_yaml_is_a_scenario_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(out_of(capsys, "describe", "scenario", "quick", "-o", "yaml"))
    assert out_of(capsys, "get", "scenario", str(file), "-o", "name") == "scenario/quick\n"


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["scenarios"], "did you mean `switchgear-chaos get scenarios`?"),
        (["verifi"], "did you mean `switchgear-chaos verify`?"),
        (["run", "quick", "--agains", "envoy"], "Did you mean '--against'?"),
        (["get", "scenarois"], "did you mean scenarios?"),
        (["get", "fault", "hangs"], "did you mean hang?"),
        (["get", "fault/hang", "scenario/quick"], "one type at a time"),
        (["get", "fault/hang", "slow"], "write every name as TYPE/NAME"),
        (["get", "scenario", "quik"], "did you mean quick?"),
        (["get", "faults", "-o", "tabel"], "did you mean table?"),
        (["describe", "fault"], "missing NAME"),
        (["run", "quick"], "give policies by -f PATH"),
        (["run", "quick", "-f", "nowhere"], "nowhere"),
    ],
)
def test_usage_errors_exit_2_with_a_hint(argv: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert text in " ".join(err.replace("'--filename' / ", "").split())


def test_policies_come_from_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(EXAMPLE.read_bytes())))
    (subject,) = combined_subjects(["-"])
    assert subject.name == "<stdin>"


def test_filename_takes_presets_and_files_together() -> None:
    found = combined_subjects(["naive", str(EXAMPLE)])
    assert [one.name for one in found] == ["naive", str(EXAMPLE)]


def test_schema_goes_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "schema.json"
    assert out_of(capsys, "schema", "--out", str(file)) == ""
    assert file.read_text() == out_of(capsys, "schema", "--out", "-")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert out_of(capsys, "version") == out_of(capsys, "--version")
    assert set(json.loads(out_of(capsys, "version", "-o", "json"))) >= {"version"}


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["des"], "describe"),
        (["get", "sc"], "scenarios"),
        (["get", "faults", "han"], "hang"),
        (["describe", "scenario", "qui"], "quick"),
        (["run", "half-cr"], "half-crash"),
        (["inject", "gpu_x"], "gpu_xid"),
        (["verify", "--leave"], "--leave-out"),
    ],
)
def test_completion_of_commands_types_names_and_flags(words: list[str], found: str) -> None:
    environment = os.environ | {
        "_SWITCHGEAR_CHAOS_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["switchgear-chaos", *words]),
        "COMP_CWORD": str(len(words)),
    }
    answer = subprocess.run(
        [sys.executable, "-c", "from chaos.cli import group; group(prog_name='switchgear-chaos')"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found in [line.partition(",")[2] for line in answer.stdout.splitlines()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_names_the_program(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "_SWITCHGEAR_CHAOS_COMPLETE" in out_of(capsys, "completion", shell)


def test_ctrl_c_while_reading_stdin_exits_130_without_traceback() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "chaos.cli", "verify", "-f", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # Once /proc shows it blocked in read(2) on the pipe, it waits for the policies.
    wchan = Path(f"/proc/{process.pid}/syscall")
    while not wchan.read_text().startswith("0 0x0 "):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err.strip()) == (130, "")


def test_ctrl_c_during_imports_exits_130_without_traceback() -> None:
    # Interrupts the first import after the guard.
    code = (
        "import os, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'click':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "sys.argv = ['switchgear-chaos', 'get', 'faults']\n"
        "from chaos.__main__ import entry\n"
        "entry()\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr.strip()) == (130, "")
