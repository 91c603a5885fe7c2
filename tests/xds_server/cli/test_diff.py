"""``switchgear diff``: exit codes, and what a person and a machine read."""

import json
from pathlib import Path

import pytest

from xds_server.cli import main

EXAMPLE = Path(__file__).parents[3] / "policies" / "examples" / "three-zones.yaml"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    path = tmp_path / "new.yaml"
    path.write_text(
        EXAMPLE.read_text().replace("maxWait: 3s", "maxWait: 5s").replace("port: 10000", "port: 10009")
    )
    return path


def diff(new: Path, *flags: str) -> int:
    return main(["diff", "-f", str(new), "--against", str(EXAMPLE), *flags])


def test_no_difference_is_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert diff(EXAMPLE) == 0
    assert capsys.readouterr().out == "no difference\n"


def test_difference_exits_1_with_locations(new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert diff(new) == 1
    out = capsys.readouterr().out
    assert f'~ ResiliencePolicy/default spec.limits.maxWait: "3s" -> "5s"  ({new}:' in out
    assert "- LDS port-10000: COLD: its port closes" in out
    assert "chat: admission limit 432 -> 528" in out
    assert "live traffic: 1 cold change" in out
    assert "\x1b" not in out


def test_a_machine_reads_the_same(new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert diff(new, "-o", "json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["cold"] == 1
    assert not answer["same"]
    assert {one["path"] for one in answer["fields"]} == {"spec.listener.port", "spec.limits.maxWait"}
    assert {one["heat"] for view in answer["views"] for one in view["effects"]} == {"hot", "cold"}


def test_engines_by_host_name_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    text = EXAMPLE.read_text().replace("address: 10.1.0.1", "address: engine.example")
    old.write_text(text)
    new.write_text(text.replace("engine.example", "other.example"))
    assert main(["diff", "-f", str(new), "--against", str(old)]) == 1
    assert "~ EDS chat: hot" in capsys.readouterr().out


def test_failed_comparison_exits_2(tmp_path: Path, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("kind: [")
    assert diff(broken) == 2
    assert main(["diff", "-f", str(new), "--against", str(tmp_path / "missing")]) == 2
    assert main(["diff", "-f", str(new), "--admin", "http://127.0.0.1:1"]) == 2
    assert "no server answers" in capsys.readouterr().err
