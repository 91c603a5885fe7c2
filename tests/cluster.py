"""A cluster to test against: the double, or a real kube-apiserver with its etcd where both binaries are given.

With ``KUBE_APISERVER`` and ``ETCD`` in the environment (paths of the two programs) the same tests run against a
real API server; tests that need injected faults, ending pods or EndpointSlices need the fake and are skipped. The
real path is untested: none of our machines has the binaries.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from chaos.processes import ChildProcesses, free_ports
from tests.cluster_double import ClusterDouble, kubeconfig
from tests.eventually import eventually
from xds_server.k8s.api_resources import NODES, PODS, POLICY_RESOURCES, ApiResource
from xds_server.k8s.client_config import ClientConfig, open_kube_api
from xds_server.k8s.kube_api import ApiError, KubeApi

CRDS = Path(__file__).parent.parent / "deploy" / "crds"
DEFINITIONS = ApiResource(
    group="apiextensions.k8s.io",
    version="v1",
    plural="customresourcedefinitions",
    kind="CustomResourceDefinition",
    namespaced=False,
)
NAMESPACES = ApiResource(group="", version="v1", plural="namespaces", kind="Namespace", namespaced=False)
SERVICES = ApiResource(group="", version="v1", plural="services", kind="Service")
_STARTS_WITHIN_S = 60.0


@dataclass(kw_only=True)
class Cluster:
    """One cluster. ``double`` is the double itself, None where it is a real one with a process of its own."""

    kubeconfig: Path
    api: KubeApi
    double: ClusterDouble | None
    pid: int | None = None

    @property
    def server(self) -> str:
        """Its address."""
        return self.api.server

    @property
    def access(self) -> ClientConfig:
        """Client configuration for the control plane."""
        return ClientConfig(kubeconfig=self.kubeconfig)

    def must_be_double(self) -> ClusterDouble:
        """The double; the test skips where there is none."""
        if self.double is None:
            pytest.skip("needs the fake: a real API server alone has no fault injection and no controllers")
        return self.double

    async def ask(
        self, method: str, path: str, body: Any = None, *, content_type: str = "application/json", **query: str
    ) -> tuple[int, Mapping[str, Any]]:
        """Status and JSON of a request that the control plane never makes; ``accept`` is a header."""
        said = yaml.safe_load(self.kubeconfig.read_text())
        server, token = said["clusters"][0]["cluster"]["server"], said["users"][0]["user"].get("token")
        headers = {"Content-Type": content_type, "Accept": query.pop("accept", "application/json")}
        headers |= {"Authorization": f"Bearer {token}"} if token else {}
        data = None if body is None else json.dumps(body).encode()
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, server + path, data=data, params=query, headers=headers, ssl=False) as answer,
        ):
            return answer.status, await answer.json()

    async def define(self, path: Path = CRDS) -> None:
        """Add the definitions of a file or a folder; ours unless others are named."""
        for said in _definitions(path):
            await self.api.create(DEFINITIONS, "", said)
            name = said["metadata"]["name"]
            await eventually(lambda name=name: self._established(name), f"{name} is established", _STARTS_WITHIN_S)

    async def _established(self, name: str) -> bool:
        status = (await self.api.get(DEFINITIONS, "", name)).get("status") or {}
        return any(
            one["type"] == "Established" and one["status"] == "True" for one in status.get("conditions", ())
        )

    async def put(self, said: Mapping[str, Any], *, namespace: str = "default") -> Mapping[str, Any]:
        """Make or replace a policy document, as ``kubectl apply`` would."""
        resource = POLICY_RESOURCES[said["kind"]]
        name = said["metadata"]["name"]
        try:
            return await self.api.apply(resource, namespace, name, said, manager="kubectl")
        except ApiError as error:
            error.add_note(f"{said['kind']} {name}")
            raise

    async def namespace(self, name: str) -> str:
        """A namespace of this name."""
        heading = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await self.api.create(NAMESPACES, "", heading)
        return name

    async def node(self, name: str, *, zone: str = "", region: str = "", **spec: Any) -> Mapping[str, Any]:
        """A node."""
        labels = {"topology.kubernetes.io/zone": zone, "topology.kubernetes.io/region": region}
        about = {"name": name, "labels": {key: text for key, text in labels.items() if text}}
        return await self.api.create(
            NODES, "", {"apiVersion": "v1", "kind": "Node", "metadata": about, "spec": spec}
        )

    async def pod(
        self,
        name: str,
        *,
        namespace: str = "default",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        node: str = "",
        ip: str = "",
        ready: bool = True,
        ports: Mapping[str, int] | None = None,
        **spec: Any,
    ) -> Mapping[str, Any]:
        """A pod that runs at ``ip``, with the given readiness."""
        container = {
            "name": "engine",
            "image": "engine",
            "ports": [{"name": key, "containerPort": number} for key, number in (ports or {}).items()],
        }
        about = {"name": name, "labels": dict(labels or {}), "annotations": dict(annotations or {})}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": about,
            "spec": {"containers": [container], **({"nodeName": node} if node else {}), **spec},
        }
        await self.api.create(PODS, namespace, body)
        status = {"phase": "Running", **({"podIP": ip, "podIPs": [{"ip": ip}]} if ip else {})}
        await self.api.strategic(PODS, namespace, name, {"status": status}, subresource="status")
        return await self.condition(name, "Ready", held=ready, namespace=namespace)

    async def condition(
        self, pod: str, which: str, *, held: bool, namespace: str = "default"
    ) -> Mapping[str, Any]:
        """The pod after setting one of its conditions, such as ``Ready``."""
        said = {"type": which, "status": "True" if held else "False"}
        patch = {"status": {"conditions": [said]}}
        return await self.api.strategic(PODS, namespace, pod, patch, subresource="status")

    async def service(
        self, name: str, *, namespace: str = "default", selector: Mapping[str, str], ports: Mapping[str, int | str]
    ) -> Mapping[str, Any]:
        """A headless service over the pods with these labels; a port by name, or the name of the pods' own."""
        said = [
            {"name": key, "port": to if isinstance(to, int) else 80, "targetPort": to} for key, to in ports.items()
        ]
        body = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {"clusterIP": "None", "selector": dict(selector), "ports": said},
        }
        return await self.api.create(SERVICES, namespace, body)


@cache
def _definitions(path: Path) -> tuple[Any, ...]:
    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    return tuple(one for file in files for one in yaml.safe_load_all(file.read_text()) if one)


@asynccontextmanager
async def running_cluster(folder: Path) -> AsyncIterator[Cluster]:
    """A cluster with only its own namespaces."""
    programs = [os.environ.get(name, "") for name in ("KUBE_APISERVER", "ETCD")]
    at = folder / "kubeconfig"
    if all(programs):
        async with _real(*programs, folder, at) as pid, open_kube_api(ClientConfig(kubeconfig=at)) as api:
            await eventually(lambda: _answers(api), "the API server is ready", _STARTS_WITHIN_S)
            yield Cluster(kubeconfig=at, api=api, double=None, pid=pid)
        return
    async with (
        ClusterDouble() as double,
        open_kube_api(ClientConfig(kubeconfig=double.write_kubeconfig(at))) as api,
    ):
        yield Cluster(kubeconfig=at, api=api, double=double)


async def _answers(api: KubeApi) -> bool:
    with contextlib.suppress(ApiError):
        return bool(await api.get(NAMESPACES, "", "default"))
    return False


@asynccontextmanager
async def _real(apiserver: str, etcd: str, folder: Path, at: Path) -> AsyncIterator[int]:
    """The process of a real API server over a real etcd, in ``folder``; who has the token may do everything."""
    token = os.urandom(16).hex()
    tokens = folder / "tokens.csv"
    tokens.write_text(f'{token},tests,tests,"system:masters"\n')
    key, public = folder / "accounts.key", folder / "accounts.pub"
    await asyncio.to_thread(_key_pair, key, public)
    client, peer, secure = free_ports(3)
    async with ChildProcesses(log_dir=folder / "logs") as processes:
        await processes.start(
            "etcd",
            [
                etcd,
                f"--data-dir={folder / 'etcd'}",
                f"--listen-client-urls=http://127.0.0.1:{client}",
                f"--advertise-client-urls=http://127.0.0.1:{client}",
                f"--listen-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-cluster=default=http://127.0.0.1:{peer}",
                "--unsafe-no-fsync",
            ],
        )
        await eventually(
            lambda: _healthy(f"http://127.0.0.1:{client}/health"), "etcd is healthy", _STARTS_WITHIN_S
        )
        server = await processes.start(
            "kube-apiserver",
            [
                apiserver,
                f"--etcd-servers=http://127.0.0.1:{client}",
                "--bind-address=127.0.0.1",
                f"--secure-port={secure}",
                # It makes its own certificate there.
                f"--cert-dir={folder / 'certificates'}",
                f"--token-auth-file={tokens}",
                "--authorization-mode=AlwaysAllow",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={public}",
                f"--service-account-signing-key-file={key}",
                "--service-cluster-ip-range=10.0.0.0/24",
                # No controller creates service accounts, and no kubelet runs the pods.
                "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition,Priority",
                "--allow-privileged=true",
            ],
        )
        at.write_text(
            kubeconfig(
                f"https://127.0.0.1:{secure}", user={"token": token}, cluster={"insecure-skip-tls-verify": True}
            )
        )
        yield server.pid


def _key_pair(key: Path, public: Path) -> None:
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    subprocess.run(
        ["openssl", "rsa", "-in", str(key), "-pubout", "-out", str(public)], check=True, capture_output=True
    )


async def _healthy(url: str) -> bool:
    with contextlib.suppress(aiohttp.ClientError):
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status == 200
    return False


@asynccontextmanager
async def double_process(folder: Path, *, crds: Path | None = CRDS) -> AsyncIterator[Mapping[str, Any]]:
    """What a double in a process of its own announces: ``server``, ``kubeconfig``, ``control``."""
    argv = [sys.executable, "-m", "tests.cluster_double", "--kubeconfig", str(folder / "kubeconfig")]
    if crds is not None:
        argv += ["--crds", str(crds)]
    async with ChildProcesses(log_dir=folder / "logs") as processes:
        child = await processes.start("cluster-double", argv, ready_within_s=_STARTS_WITHIN_S)
        yield child.ready
