"""``switchgear export istio``: objects, loss report and exit code."""

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from istio.export.fidelity_tables import BEGIN, END, fidelity_tables
from xds_server.cli import main

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "policies" / "examples"
NOTHING_LOST = str(EXAMPLES / "interactive-and-batch.yaml")
MODEL_LOST = str(EXAMPLES / "flagship-with-fallback.yaml")


def test_objects_go_to_stdout_and_report_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "istio", "-f", MODEL_LOST]) == 0
    out, err = capsys.readouterr()
    documents = list(yaml.safe_load_all(out))
    assert {one["kind"] for one in documents} == {
        "ServiceEntry",
        "WorkloadEntry",
        "DestinationRule",
        "VirtualService",
        "EnvoyFilter",
        "Telemetry",
    }
    assert {one["metadata"]["labels"]["app.kubernetes.io/managed-by"] for one in documents} == {"switchgear"}
    assert "ModelRoute/flagship" in err
    assert "spec.match.model" in err
    assert "`switchgear istio run` restores them" in err


@pytest.mark.parametrize(
    ("path", "fail_on", "status"),
    [
        (NOTHING_LOST, "lost", 0),
        (NOTHING_LOST, "approximated", 1),
        (NOTHING_LOST, "never", 0),
        (MODEL_LOST, "lost", 1),
        (MODEL_LOST, "approximated", 1),
        (MODEL_LOST, "never", 0),
    ],
)
def test_fail_on(capsys: pytest.CaptureFixture[str], path: str, fail_on: str, status: int) -> None:
    assert main(["export", "istio", "-f", path, "--fail-on", fail_on]) == status
    assert capsys.readouterr().out.startswith("---\n")


def test_out_writes_a_folder_and_report_is_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, report = tmp_path / "out", tmp_path / "report.json"
    words = ["export", "istio", "-f", MODEL_LOST, "--out", str(folder)]
    assert main([*words, "--report", "json", "--report-to", str(report)]) == 0
    assert capsys.readouterr() == ("", "")
    found = json.loads(report.read_text())
    assert len(list(folder.iterdir())) == len(found["objects"])
    assert found["summary"]["worst"] == "lost"
    assert sum(found["summary"]["all"].values()) == len(found["fields"])
    assert {one["fate"] for one in found["fields"]} == {"exact", "approximated", "lost"}
    written = [yaml.safe_load(path.read_text()) for path in sorted(folder.iterdir())]
    assert [one["kind"] for one in written] == [name.partition("/")[0] for name in found["objects"]]


def test_mesh_options_reach_the_objects(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", "istio", "-f", NOTHING_LOST, "--namespace", "llm", "--host-suffix", "svc.corp"]
    words += ["--gateway", "edge/public", "--filter-namespace", "edge", "--no-telemetry", "--proxies", "4"]
    assert main([*words, "--abort", "jobs=503@10", "--delay", "jobs=250ms@5"]) == 0
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    assert {one["metadata"]["namespace"] for one in documents if one["kind"] != "EnvoyFilter"} == {"llm"}
    assert {one["metadata"]["namespace"] for one in documents if one["kind"] == "EnvoyFilter"} == {"edge"}
    (service,) = (one for one in documents if one["kind"] == "VirtualService")
    assert (service["spec"]["hosts"], service["spec"]["gateways"]) == (["*"], ["edge/public"])
    faults = {rule["name"].partition("/")[0]: rule.get("fault") for rule in service["spec"]["http"]}
    assert faults == {
        "jobs": {
            "abort": {"httpStatus": 503, "percentage": {"value": 10.0}},
            "delay": {"fixedDelay": "0.25s", "percentage": {"value": 5.0}},
        },
        "people": None,
    }
    assert "Telemetry" not in {one["kind"] for one in documents}
    patches = [
        patch for one in documents if one["kind"] == "EnvoyFilter" for patch in one["spec"]["configPatches"]
    ]
    assert {patch["match"]["context"] for patch in patches} == {"GATEWAY"}
    (rule,) = (one for one in documents if one["kind"] == "DestinationRule")
    assert rule["spec"]["host"] == "chat.llm.svc.corp"
    assert main(["export", "istio", "-f", NOTHING_LOST]) == 0
    (alone,) = (one for one in yaml.safe_load_all(capsys.readouterr().out) if one["kind"] == "DestinationRule")

    def ceiling(one: dict) -> int:  # type: ignore[type-arg]  # as YAML gives it
        return int(one["spec"]["trafficPolicy"]["connectionPool"]["http"]["http2MaxRequests"])

    assert 0 <= 4 * ceiling(rule) - ceiling(alone) < 4


def test_policies_come_from_stdin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "istio", "-f", NOTHING_LOST]) == 0
    from_file = capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(Path(NOTHING_LOST).read_bytes())))
    assert main(["export", "istio", "-f", "-"]) == 0
    assert capsys.readouterr().out == from_file


def test_objects_as_one_json_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "istio", "-f", NOTHING_LOST, "-o", "json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["apiVersion"], found["kind"]) == ("v1", "List")
    assert main(["export", "istio", "-f", NOTHING_LOST]) == 0
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == found["items"]
    header = next(line for line in err.splitlines() if line.startswith("FATE"))
    assert header.split() == ["FATE", "FIELD", "VALUE", "SET", "BY", "HOW"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "-f PATH"),
        (["-f", "nowhere.yaml"], "nowhere.yaml"),
        (["-f", NOTHING_LOST, "--namespace", "No_Name"], "is not a name"),
        (["-f", NOTHING_LOST, "--host-suffix", "svc..local"], "is not a host suffix"),
        (["-f", NOTHING_LOST, "--gateway", "public"], "NAMESPACE/NAME"),
        (["-f", NOTHING_LOST, "--fail-on", "maybe"], "--fail-on"),
        (["-f", NOTHING_LOST, "--abort", "jobs"], "ROUTE=STATUS@PERCENT"),
        (["-f", NOTHING_LOST, "--abort", "jobs=99@5"], "is not an HTTP status"),
        (["-f", NOTHING_LOST, "--abort", f"jobs={'9' * 5_000}@5"], "is not an HTTP status"),
        (["-f", NOTHING_LOST, "--delay", "jobs=5@5"], "is not a duration"),
        (["-f", NOTHING_LOST, "--abort", "nosuch=503@5"], "unknown ModelRoute nosuch"),
        (["-f", NOTHING_LOST, "--out", "/dev/null/x"], "cannot write /dev/null/x"),
    ],
)
def test_usage_errors_exit_2(capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    assert main(["export", "istio", *words]) == 2
    out, err = capsys.readouterr()
    assert says in err
    assert out == ""


def test_invalid_policies_exit_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(Path(NOTHING_LOST).read_text().replace("slotsPerEngine", "slotsPerEngin"))
    assert main(["export", "istio", "-f", str(path)]) == 1
    assert "slotsPerEngin" in capsys.readouterr().err


def test_page_has_the_generated_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "istio", "--table"]) == 0
    assert capsys.readouterr().out == fidelity_tables()
    page = (ROOT / "docs" / "istio.md").read_text()
    begin, end = page.index(BEGIN), page.index(END) + len(END)
    assert page[begin:end] + "\n" == fidelity_tables(), (
        "docs/istio.md: put in what `switchgear export istio --table` prints"
    )


LIVE = """
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: by-service}
spec: {model: m, kubernetes: {service: vllm, port: 8000}}
---
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: by-labels}
spec: {model: m, kubernetes: {selector: {app: vllm}, port: 8000}}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: one}
spec: {listener: {port: 10000}, pools: [{pool: by-service}]}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: two}
spec: {listener: {port: 10001}, pools: [{pool: by-labels}]}
"""
SERVING = {"switchgear.dev/serving": "true"}


@pytest.mark.parametrize("live", [True, False])
def test_live_selects_engines_by_label(tmp_path: Path, capsys: pytest.CaptureFixture[str], live: bool) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(LIVE)
    assert main(["export", "istio", "-f", str(path), *(["--live"] if live else [])]) == 0
    found = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(capsys.readouterr().out)}
    rule = found["DestinationRule", "by-service"]["spec"]
    assert rule.get("subsets") == ([{"name": "serving", "labels": SERVING}] if live else None)
    ways = [one for (kind, _), one in found.items() if kind == "VirtualService"]
    subsets = {
        route["destination"]["host"].partition(".")[0]: route["destination"].get("subset")
        for way in ways
        for http in way["spec"]["http"]
        for route in http.get("route", ())
    }
    assert subsets == {"vllm": "serving" if live else None, "by-labels": None}
    selects = found["ServiceEntry", "by-labels"]["spec"]["workloadSelector"]["labels"]
    assert selects == {"app": "vllm", **(SERVING if live else {})}
