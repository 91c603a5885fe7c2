"""``switchgear-chaos export`` at the command line."""

import pytest
import yaml

from chaos.cli import main


def test_manifests_go_to_stdout_and_remarks_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", "quick", "bad-policy-push", "--format", "chaos-mesh", "--engines", "app=llm,tier=model"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    documents = [one for one in yaml.safe_load_all(out) if one]
    assert [one["metadata"]["name"] for one in documents] == ["quick", "bad-policy-push"]
    assert "app: llm" in out
    assert "tier: model" in out
    assert err == "bad-policy-push: no counterpart in Chaos Mesh: push\n"


def test_litmus_writes_one_engine_per_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "quick", "--format", "litmus", "--namespace", "llm"]) == 0
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
        (["export", "quik", "--format", "litmus"], "did you mean quick?"),
        (["export", "quick", "--format", "litmus", "--engines", "app"], "not a list of labels"),
        (["export", "quick"], "--format"),
    ],
)
def test_who_asks_wrongly_is_told(capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    assert main(words) == 2
    assert says in capsys.readouterr().err
