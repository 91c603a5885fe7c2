"""``switchgear-chaos export`` at the command line."""

from pathlib import Path

import pytest
import yaml

from chaos.cli import main


def test_export_writes_manifests_and_reports_losses(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", "quick", "bad-policy-push", "--tool", "chaos-mesh", "--engines", "app=llm,tier=model"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    documents = [one for one in yaml.safe_load_all(out) if one]
    assert [one["metadata"]["name"] for one in documents] == ["quick", "bad-policy-push"]
    assert "app: llm" in out
    assert "tier: model" in out
    assert err == "bad-policy-push: no counterpart in Chaos Mesh: push\n"


def test_litmus_export_has_an_engine_per_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "quick", "--tool", "litmus", "--namespace", "llm"]) == 0
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [one["metadata"]["name"] for one in documents] == [
        "quick-hang",
        "quick-agent-lost",
        "quick-half-crash",
        "quick-errors",
    ]
    assert {one["metadata"]["namespace"] for one in documents} == {"llm"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["export", "quik", "--tool", "litmus"], "did you mean quick?"),
        (["export", "quick", "--tool", "litmus", "--engines", "app"], "not a list of labels"),
        (["export", "quick"], "--tool"),
    ],
)
def test_export_usage_errors_exit_2(capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    assert main(words) == 2
    assert says in capsys.readouterr().err


def test_export_writes_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "quick", "--tool", "litmus", "--out", str(tmp_path / "quick.yaml")]) == 0
    assert capsys.readouterr().out == ""
    assert "kind: ChaosEngine" in (tmp_path / "quick.yaml").read_text()
