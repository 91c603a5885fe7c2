"""A cluster to test against: the double, or a real kube-apiserver with its etcd where both binaries are given.

With ``KUBE_APISERVER`` and ``ETCD`` in the environment (paths of the two programs), or with ``--api-server``, the
same tests run against a real API server. Tests of faults that only the double can play are skipped there.
"""

import contextlib
import json
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

from chaos.processes import ChildProcesses
from tests.api_server import ApiServer, running_api_server
from tests.cluster_double import ClusterDouble, Troubles
from tests.cluster_parts import from_environment
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
    """One cluster: the ``double``, or a ``real`` API server."""

    kubeconfig: Path
    api: KubeApi
    double: ClusterDouble | None
    real: ApiServer | None = None

    @property
    def server(self) -> str:
        """Its address."""
        return self.api.server

    @property
    def access(self) -> ClientConfig:
        """Client configuration for the control plane."""
        return ClientConfig(kubeconfig=self.kubeconfig)

    def must_be_double(self, why: str) -> ClusterDouble:
        """The double; the test skips where there is none, with the reason why it needs one."""
        if self.double is None:
            pytest.skip(f"needs the fake: {why}")
        return self.double

    def must_have_controllers(self) -> None:
        """Skip the test where no EndpointSlices are made from Services."""
        if self.real is not None and self.real.parts.controllers is None:
            pytest.skip("needs controllers: KUBE_CONTROLLER_MANAGER names no program")

    async def down(self) -> None:
        """Kill the API server; what it stored stays."""
        await (self.double or self._real()).down()

    async def up(self) -> None:
        """Start it again, at the same address."""
        await (self.double or self._real()).up()

    def freeze(self) -> None:
        """Have it accept requests and answer none, and send no events."""
        if self.double is None:
            self._real().freeze()
        else:
            self.double.trouble(Troubles(silent=True))

    def thaw(self) -> None:
        """End ``freeze``."""
        if self.double is None:
            self._real().thaw()
        else:
            self.double.trouble(Troubles())

    def _real(self) -> ApiServer:
        assert self.real is not None, "a cluster is the double or a real API server"
        return self.real

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
            if answer.content_type != "application/json":  # of a group or version that it does not serve
                return answer.status, {"message": await answer.text()}
            return answer.status, await answer.json()

    async def define(self, path: Path = CRDS) -> None:
        """Add the definitions of a file or a folder; ours unless others are named."""
        for said in _definitions(path):
            await self.api.create(DEFINITIONS, "", said)
            name = said["metadata"]["name"]
            await eventually(lambda name=name: self._established(name), f"{name} is established", _STARTS_WITHIN_S)
            spec = said["spec"]
            path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
            await eventually(lambda path=path: self._served(path), f"{path} is served", _STARTS_WITHIN_S)

    async def _established(self, name: str) -> bool:
        status = (await self.api.get(DEFINITIONS, "", name)).get("status") or {}
        # A real server says null at first.
        conditions = status.get("conditions") or ()
        return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)

    async def _served(self, path: str) -> bool:
        # A real server serves a kind a moment after it reports it.
        with contextlib.suppress(ApiError):
            return bool(await self.api.get_raw(path))
        return False

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
        self,
        name: str,
        *,
        namespace: str = "default",
        selector: Mapping[str, str],
        ports: Mapping[str, int | str],
        headless: bool = True,
    ) -> Mapping[str, Any]:
        """A service over the pods with these labels; a port by name, or the name of the pods' own."""
        said = [
            {"name": key, "port": to if isinstance(to, int) else 80 + number, "targetPort": to}
            for number, (key, to) in enumerate(ports.items())
        ]
        body = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {**({"clusterIP": "None"} if headless else {}), "selector": dict(selector), "ports": said},
        }
        return await self.api.create(SERVICES, namespace, body)


@cache
def _definitions(path: Path) -> tuple[Any, ...]:
    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    return tuple(one for file in files for one in yaml.safe_load_all(file.read_text()) if one)


@asynccontextmanager
async def running_cluster(folder: Path) -> AsyncIterator[Cluster]:
    """A cluster with only its own namespaces, and with processes of its own."""
    parts = from_environment()
    if parts is None:
        at = folder / "kubeconfig"
        async with (
            ClusterDouble() as double,
            open_kube_api(ClientConfig(kubeconfig=double.write_kubeconfig(at))) as api,
        ):
            yield Cluster(kubeconfig=at, api=api, double=double)
        return
    async with running_api_server(parts, folder) as real, cluster_of(real, folder) as cluster:
        yield cluster


@asynccontextmanager
async def cluster_of(real: ApiServer, folder: Path) -> AsyncIterator[Cluster]:
    """An API server that runs already, with a kubeconfig of this caller's own in a folder."""
    at = folder / "kubeconfig"
    at.write_text(real.kubeconfig_text(real.token))
    async with open_kube_api(ClientConfig(kubeconfig=at)) as api:
        yield Cluster(kubeconfig=at, api=api, double=None, real=real)


@asynccontextmanager
async def double_process(folder: Path, *, crds: Path | None = CRDS) -> AsyncIterator[Mapping[str, Any]]:
    """What a double in a process of its own announces: ``server``, ``kubeconfig``, ``control``."""
    argv = [sys.executable, "-m", "tests.cluster_double", "--kubeconfig", str(folder / "kubeconfig")]
    if crds is not None:
        argv += ["--crds", str(crds)]
    async with ChildProcesses(log_dir=folder / "logs") as processes:
        child = await processes.start("cluster-double", argv, ready_within_s=_STARTS_WITHIN_S)
        yield child.ready
