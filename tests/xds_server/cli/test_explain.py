"""``switchgear explain``: fields, codes, and who set what."""

import json
from pathlib import Path

import pytest

from policies.model import KINDS
from policies.schema import fields
from xds_server.cli import main

EXAMPLES = Path(__file__).parents[3] / "policies" / "examples"
FLAGSHIP = EXAMPLES / "flagship-with-fallback.yaml"


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main([str(one) for one in ("explain", *arguments)])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    "field", ["ResiliencePolicy.spec.limits.maxWait", "spec.limits.maxWait", "limits.maxWait", "maxWait"]
)
def test_a_field_by_any_of_its_names(capsys: pytest.CaptureFixture[str], field: str) -> None:
    code, out, _ = run(capsys, field)
    assert code == 0
    assert out.startswith("ResiliencePolicy.spec.limits.maxWait\n  Longest wait for a slot")
    assert "default:  2s" in out
    assert "takes:    a duration, at least 0s, at most 1h" in out
    assert "why:      measured: with two seconds" in out
    assert "live:     RTDS, RDS; hot: requests in flight, counts and ejections survive" in out
    assert "istio:    approximated: http2MaxRequests" in out
    assert "gateway:  approximated: circuitBreaker.maxParallelRequests" in out


def test_cold_field_is_marked_and_a_block_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert "live:     CDS; cold: a changed cluster forgets" in run(capsys, "timeouts.connect")[1]
    assert "live:     no resource" in run(capsys, "endpoints.gpus")[1]
    assert "live:" not in run(capsys, "retries.backoff")[1]
    record = json.loads(run(capsys, "limits.maxWait", "-o", "json")[1])
    assert record["fields"][0]["live"] == ["RTDS", "RDS"]
    assert json.loads(run(capsys, "endpoints.gpus", "-o", "json")[1])["fields"][0]["live"] == []


def test_fields_of_lists_and_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    for field in ("endpoints.port", "endpoints[].port", "spec.endpoints[3].port"):
        assert run(capsys, field)[1].startswith("EnginePool.spec.endpoints[].port\n")
    assert "fields:   base, max" in run(capsys, "retries.backoff")[1]
    assert "fields:   address, port, agentPort, name" in run(capsys, "endpoints")[1]


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_can_be_explained(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    for path in fields(kind):
        code, out, _ = run(capsys, f"{kind}.{path}")
        assert code == 0
        assert out.startswith(f"{kind}.{path}\n")


@pytest.mark.parametrize(
    ("field", "guess"),
    [("limits.max_wait", "limits.maxWait"), ("maxwait", "maxWait"), ("retries.atempts", "retries.attempts"),
     ("spec.limits.maxWiat", "spec.limits.maxWait")],
)  # fmt: skip
def test_unknown_field_exits_2_with_a_suggestion(
    capsys: pytest.CaptureFixture[str], field: str, guess: str
) -> None:
    code, out, err = run(capsys, field)
    assert (code, out) == (2, "")
    assert guess in err


def test_unknown_code_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "SG999")
    assert code == 2
    assert "--codes" in err


def test_the_fields_of_a_kind(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "modelroute")
    assert code == 0
    assert out.startswith("ModelRoute\n")
    assert "maxBodyBytes" in out
    assert "EnginePool\n" not in out


def test_the_tree_of_all_fields(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys)
    assert code == 0
    for kind in KINDS:
        assert f"{kind}\n" in out
    assert sum(1 for line in out.splitlines() if line.startswith(" ")) == sum(len(fields(kind)) for kind in KINDS)


def test_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "sg102")
    assert code == 0
    assert out.startswith("### SG102: ")
    assert run(capsys, "SG999")[0] == 2


def test_who_set_what(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "retries.attempts", "-f", FLAGSHIP, "-o", "json")
    assert code == 0
    settings = json.loads(out)["settings"]
    assert [(one["owner"], one["value"], one["layer"]) for one in settings] == [
        ("flagship", 1, "policy flagship"),
        ("small", 3, "built-in default"),
    ]
    file, line, _ = settings[0]["origin"].rsplit(":", 2)
    assert Path(file) == FLAGSHIP
    assert "attempts: 1" in FLAGSHIP.read_text().splitlines()[int(line) - 1]
    assert settings[1]["origin"] == ""


def test_who_set_a_block_and_the_items_of_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "breaker", "-f", FLAGSHIP)[1]
    assert "spec.breaker.cooldown\n" in out
    assert f"30s                      policy default, {FLAGSHIP}:" in out
    assert "spec.breaker.windowCalls\n" in out
    out = run(capsys, "endpoints.zone", "-f", FLAGSHIP)[1]
    assert "EnginePool/flagship spec.endpoints[1].zone zone-b" in out
    assert out.count("zone zone-") == 6
    assert "No document in these files" in run(capsys, "match.headers.name", "-f", FLAGSHIP)[1]


def test_files_with_errors(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("[]")
    code, out, err = run(capsys, "limits.maxWait", "-f", tmp_path)
    assert (code, out) == (1, "")
    assert "SG020" in err


@pytest.mark.parametrize("flag", ["--defaults", "--reference", "--codes"])
def test_whole_references(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    code, out, _ = run(capsys, flag)
    assert code == 0
    assert out.startswith("# ")
