"""``helm test`` connects to what an installation must offer, and names what does not accept."""

import socket
import subprocess
import sys

import pytest

from chaos.processes import free_ports
from tests.deploy import helm_rendering
from tests.deploy.helm_rendering import Document


def _container(values: str) -> Document:
    pod = helm_rendering.named(helm_rendering.documents(values), "Pod", "switchgear-test")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    (container,) = pod["spec"]["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    return container  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("values", "addresses"),
    [
        ("default", ["switchgear.inference.svc:18000", "switchgear-gateway.inference.svc:10000"]),
        # Its gateways admit chosen callers only, and this pod is not one of them.
        ("production", ["switchgear.inference.svc:18000"]),
        ("hpa", ["switchgear.inference.svc:18000"]),
    ],
)
def test_addresses_are_services_that_admit_the_pod(values: str, addresses: list[str]) -> None:
    assert _container(values)["args"][1:] == addresses
    found = helm_rendering.documents(values)
    for address in addresses:
        host, _, port = address.partition(":")
        service = helm_rendering.named(found, "Service", host.partition(".")[0])
        assert int(port) in {one["port"] for one in service["spec"]["ports"]}


def test_script_accepts_open_ports_and_names_closed_ones() -> None:
    container = _container("default")
    assert container["command"] == ["python3", "-c"]
    (closed,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        opened = f"127.0.0.1:{server.getsockname()[1]}"
        script = [sys.executable, "-c", container["args"][0]]
        passed = subprocess.run([*script, opened], capture_output=True, text=True, check=False, timeout=60)
        assert (passed.returncode, passed.stdout) == (0, f"{opened}: accepted\n")
        failed = subprocess.run(
            [*script, "--deadline=0.3", opened, f"127.0.0.1:{closed}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert failed.returncode == 1
    assert f"{opened}: accepted\n127.0.0.1:{closed}: " in failed.stdout
    assert "No ready pod" in failed.stdout


def test_kubectl_manifests_do_not_contain_the_test() -> None:
    for path in ("manifests/whole-cluster.yaml", "manifests/one-namespace.yaml"):
        assert not helm_rendering.of_kind(helm_rendering.written(path), "Pod")
