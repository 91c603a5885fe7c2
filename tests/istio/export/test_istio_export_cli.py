"""``switchgear export istio`` at the command line: objects, report and exit status."""

import json
from pathlib import Path

import pytest
import yaml

from istio.export.fidelity_tables import BEGIN, END, fidelity_tables
from xds_server.cli import main

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "policies" / "examples"
NOTHING_LOST = str(EXAMPLES / "interactive-and-batch.yaml")
MODEL_LOST = str(EXAMPLES / "flagship-with-fallback.yaml")


def test_objects_go_to_stdout_and_the_report_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "istio", "--policies", MODEL_LOST]) == 0
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
    assert "`switchgear istio run` brings them back" in err


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
    assert main(["export", "istio", "--policies", path, "--fail-on", fail_on]) == status
    assert capsys.readouterr().out.startswith("---\n")


def test_into_a_folder_with_the_report_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, report = tmp_path / "out", tmp_path / "report.json"
    words = ["export", "istio", "--policies", MODEL_LOST, "-o", str(folder)]
    assert main([*words, "--report", "json", "--report-to", str(report)]) == 0
    assert capsys.readouterr() == ("", "")
    said = json.loads(report.read_text())
    assert len(list(folder.iterdir())) == len(said["objects"])
    assert said["summary"]["worst"] == "lost"
    assert sum(said["summary"]["all"].values()) == len(said["fields"])
    assert {one["fate"] for one in said["fields"]} == {"exact", "approximated", "lost"}
    written = [yaml.safe_load(path.read_text()) for path in sorted(folder.iterdir())]
    assert [one["kind"] for one in written] == [name.partition("/")[0] for name in said["objects"]]


def test_namespaces_hosts_gateway_and_faults(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", "istio", "--policies", NOTHING_LOST, "--namespace", "llm", "--host-suffix", "svc.corp"]
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
    assert main(["export", "istio", "--policies", NOTHING_LOST]) == 0
    (alone,) = (one for one in yaml.safe_load_all(capsys.readouterr().out) if one["kind"] == "DestinationRule")

    def ceiling(one: dict) -> int:  # type: ignore[type-arg]  # as YAML gives it
        return int(one["spec"]["trafficPolicy"]["connectionPool"]["http"]["http2MaxRequests"])

    assert 0 <= 4 * ceiling(rule) - ceiling(alone) < 4


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--policies"),
        (["--policies", "nowhere.yaml"], "nowhere.yaml"),
        (["--policies", NOTHING_LOST, "--namespace", "No_Name"], "is not a name"),
        (["--policies", NOTHING_LOST, "--host-suffix", "svc..local"], "is not a host suffix"),
        (["--policies", NOTHING_LOST, "--gateway", "public"], "NAMESPACE/NAME"),
        (["--policies", NOTHING_LOST, "--fail-on", "maybe"], "--fail-on"),
        (["--policies", NOTHING_LOST, "--abort", "jobs"], "ROUTE=STATUS@PERCENT"),
        (["--policies", NOTHING_LOST, "--abort", "jobs=99@5"], "is no HTTP status"),
        (["--policies", NOTHING_LOST, "--abort", f"jobs={'9' * 5_000}@5"], "is no HTTP status"),
        (["--policies", NOTHING_LOST, "--delay", "jobs=5@5"], "is not a duration"),
        (["--policies", NOTHING_LOST, "--abort", "nobody=503@5"], "no ModelRoute nobody"),
        (["--policies", NOTHING_LOST, "-o", "/dev/null/x"], "cannot be written"),
    ],
)
def test_who_asks_wrongly_is_told(capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    assert main(["export", "istio", *words]) == 2
    out, err = capsys.readouterr()
    assert says in err
    assert out == ""


def test_policies_with_problems_are_complained_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(Path(NOTHING_LOST).read_text().replace("slotsPerEngine", "slotsPerEngin"))
    assert main(["export", "istio", "--policies", str(path)]) == 1
    assert "slotsPerEngin" in capsys.readouterr().err


def test_the_documentation_has_the_table_of_the_code(capsys: pytest.CaptureFixture[str]) -> None:
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
def test_live_engines_serve_by_their_label(tmp_path: Path, capsys: pytest.CaptureFixture[str], live: bool) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(LIVE)
    assert main(["export", "istio", "--policies", str(path), *(["--live"] if live else [])]) == 0
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
