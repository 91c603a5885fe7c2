"""Istio's own programs: what istioctl says of exported objects, and istiod before a plain Envoy.

istiod reads an API server. Filters that only Istio's build of Envoy has are switched off, and so are certificates:
a plain Envoy has no agent that would fetch them.
"""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from chaos.processes import ChildProcesses
from istio.export.istio_objects import Object
from tests.cluster import Cluster
from tests.eventually import eventually
from tests.mesh_parts import ISTIOCTL, ISTIOD, required
from xds_server.k8s.api_resources import ApiResource
from xds_server.translate.pool_clusters import HTTP_OPTIONS

STARTS_WITHIN_S: Final = 120.0
_LISTENS: Final = re.compile(r"starting gRPC discovery service at 127\.0\.0\.1:(\d+)")
_ALWAYS: Final = "EnvoyFilter exposes internal implementation details"
"""IST0133: what istioctl says of every EnvoyFilter."""

_ENVIRONMENT: Final = {
    "POD_NAMESPACE": "istio-system",
    "ENABLE_CA_SERVER": "false",
    "PILOT_CERT_PROVIDER": "none",
    "PILOT_ENABLE_ALPN_FILTER": "false",
    "PILOT_ENABLE_METADATA_EXCHANGE": "false",
}
_MESH: Final = {"enableAutoMtls": False, "defaultProviders": {}, "rootNamespace": "istio-system"}
_PLURALS: Final = {
    "ServiceEntry": "serviceentries",
    "WorkloadEntry": "workloadentries",
    "DestinationRule": "destinationrules",
    "VirtualService": "virtualservices",
    "EnvoyFilter": "envoyfilters",
    "Gateway": "gateways",
}
_HTTP2: Final = {
    "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
    "explicit_http_config": {"http2_protocol_options": {}},
}


def said_by_istioctl(objects: Sequence[Object], folder: Path) -> Iterator[str]:
    """What ``istioctl validate`` and ``istioctl analyze`` have against the objects, without IST0133."""
    program, file = required(ISTIOCTL), folder / "exported.yaml"
    file.write_text(yaml.dump_all(objects, Dumper=yaml.CSafeDumper))
    validated = _run(program, "validate", "-f", file)
    if validated.returncode:
        yield validated.stderr
    for line in validated.stdout.splitlines():
        if line.startswith("\t* ") and _ALWAYS not in line:
            yield line.strip()
    analyzed = _run(program, "analyze", "--use-kube=false", "-A", "-o", "json", file)
    for found in json.loads(analyzed.stdout):
        if _ALWAYS not in found["message"]:
            yield f"{found['code']} {found['origin']}: {found['message']}"


def write_definitions(at: Path) -> None:
    """Write the definitions of Istio's kinds, as istioctl installs them."""
    manifest = _run(required(ISTIOCTL), "manifest", "generate")
    assert manifest.returncode == 0, manifest.stderr
    every = yaml.load_all(manifest.stdout, Loader=yaml.CSafeLoader)
    kinds = [one for one in every if one and one["kind"] == "CustomResourceDefinition"]
    at.write_text(yaml.dump_all(kinds, Dumper=yaml.CSafeDumper))


def _run(program: Path, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=120)


async def apply(cluster: Cluster, objects: Sequence[Object], *, force: bool = True) -> None:
    """Apply exported objects, as ``kubectl apply --server-side`` does."""
    for one in objects:
        kind, metadata = str(one["kind"]), one["metadata"]
        assert isinstance(metadata, dict)
        version = str(one["apiVersion"]).rpartition("/")[2]
        resource = ApiResource(
            group="networking.istio.io", version=version, plural=_PLURALS[kind], kind=kind, namespaced=True
        )
        await cluster.api.apply(
            resource, metadata["namespace"], metadata["name"], one, manager="switchgear", force=force
        )


async def start_istiod(processes: ChildProcesses, kubeconfig: Path, folder: Path) -> int:
    """The port of the discovery service of an istiod that has read this API server."""
    mesh = folder / "mesh.yaml"
    mesh.write_text(yaml.safe_dump(_MESH))
    command = [str(required(ISTIOD)), "discovery", "--kubeconfig", str(kubeconfig), "--meshConfig", str(mesh)]
    for address in ("httpAddr", "grpcAddr", "monitoringAddr"):
        command += [f"--{address}", "127.0.0.1:0"]
    command += ["--httpsAddr", "", "--secureGRPCAddr", "", "--ctrlz_port", "0"]
    child = await processes.start("istiod", command, env=_ENVIRONMENT)

    def port() -> int:
        assert child.returncode is None, child.tail()
        found = _LISTENS.search(child.log_path.read_text())
        return int(found[1]) if found else 0

    return int(await eventually(port, "istiod listens", STARTS_WITHIN_S))


def gateway_bootstrap(istiod_port: int, namespace: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """The proxy of an Istio gateway in that namespace, which has these labels."""
    made = sidecar_bootstrap(istiod_port, namespace)
    made["node"] = {
        "id": f"router~127.0.0.1~gateway.{namespace}~{namespace}.svc.cluster.local",
        "cluster": f"gateway.{namespace}",
        "metadata": {"NAMESPACE": namespace, "ISTIO_VERSION": "1.31.0", "LABELS": dict(labels)},
    }
    return made


def sidecar_bootstrap(istiod_port: int, namespace: str) -> dict[str, Any]:
    """A sidecar of that namespace, without redirection: each service's port is one of 127.0.0.1."""
    ads = {"ads": {}, "resource_api_version": "V3"}
    address = {"socket_address": {"address": "127.0.0.1", "port_value": istiod_port}}
    return {
        "node": {
            "id": f"sidecar~127.0.0.1~caller.{namespace}~{namespace}.svc.cluster.local",
            "cluster": f"caller.{namespace}",
            "metadata": {"NAMESPACE": namespace, "ISTIO_VERSION": "1.31.0", "INTERCEPTION_MODE": "NONE"},
        },
        "dynamic_resources": {
            "ads_config": {
                "api_type": "DELTA_GRPC",
                "transport_api_version": "V3",
                "grpc_services": [{"envoy_grpc": {"cluster_name": "xds-grpc"}}],
            },
            "cds_config": ads,
            "lds_config": ads,
        },
        "static_resources": {
            "clusters": [
                {
                    "name": "xds-grpc",
                    "type": "STATIC",
                    "typed_extension_protocol_options": {HTTP_OPTIONS: _HTTP2},
                    "load_assignment": {
                        "cluster_name": "xds-grpc",
                        "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
                    },
                }
            ]
        },
    }
