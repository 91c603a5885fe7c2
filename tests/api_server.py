"""A real kube-apiserver over a real etcd, with controllers where there are any: no nodes, no pods that run.

Everything is in one folder and on free ports of the loopback interface: data, certificates, keys, tokens, logs.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import aiohttp

from chaos.processes import ChildProcess, ChildProcesses, free_ports
from tests.cluster_double import kubeconfig
from tests.cluster_parts import Parts
from tests.eventually import eventually

T = TypeVar("T")

STARTS_WITHIN_S: Final = 120.0
SERVICE_RANGE: Final = "10.0.0.0/16"
CONTROLLERS: Final = (
    "endpointslice-controller",
    "garbage-collector-controller",
    "namespace-controller",
)
"""Those that only follow the API. The node lifecycle controller would miss the kubelets, and evict every pod."""

_AUDIT_POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
}
_COLLECTIONS: Final = (
    *(
        f"/api/v1/{plural}"
        for plural in ("pods", "services", "events", "configmaps", "secrets", "serviceaccounts")
    ),
    "/apis/discovery.k8s.io/v1/endpointslices",
    "/apis/coordination.k8s.io/v1/leases",
    *(f"/apis/rbac.authorization.k8s.io/v1/{plural}" for plural in ("rolebindings", "roles")),
)
_CLUSTER_COLLECTIONS: Final = (
    "/api/v1/nodes",
    *(f"/apis/rbac.authorization.k8s.io/v1/{plural}" for plural in ("clusterrolebindings", "clusterroles")),
)
_KEPT_NAMESPACES: Final = frozenset({"kube-system", "kube-public", "kube-node-lease"})
_AT_ONCE: Final = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}


class ApiServer:
    """One API server with its etcd. ``token``: its bearer may do everything.

    Its processes belong to the event loop that started them; other loops may use it too.
    """

    def __init__(self, parts: Parts, at: Path, processes: ChildProcesses) -> None:
        self.parts = parts
        self.token = os.urandom(16).hex()
        self.kubeconfig = at / "kubeconfig"
        self._at = at
        self._processes = processes
        self._home = asyncio.get_running_loop()
        self._etcd_port, self._peer_port, self._port = free_ports(3)
        self._etcd: ChildProcess | None = None
        self._server: ChildProcess | None = None

    @property
    def programs(self) -> tuple[ChildProcess, ...]:
        """Its process and that of its etcd."""
        return tuple(one for one in (self._server, self._etcd) if one is not None)

    @property
    def url(self) -> str:
        """Its address."""
        return f"https://127.0.0.1:{self._port}"

    @property
    def authority(self) -> Path:
        """The certificate that it made for itself, which is what clients verify it by."""
        return self._at / "certificates" / "apiserver.crt"

    @property
    def audit_log(self) -> Path:
        """Answered requests of service accounts: one JSON event a line."""
        return self._at / "audit.log"

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._server is not None, "the API server has not been started"
        return self._server.pid

    def kubeconfig_text(self, token: str) -> str:
        """A kubeconfig for the bearer of a token."""
        return kubeconfig(self.url, user={"token": token}, cluster={"certificate-authority": str(self.authority)})

    async def start_all(self) -> None:
        """Start etcd, the API server, and controllers if there are any; return when they answer."""
        self.audit_log.touch()
        (self._at / "audit-policy.json").write_text(json.dumps(_AUDIT_POLICY))
        (self._at / "tokens.csv").write_text(f'{self.token},tests,tests,"system:masters"\n')
        await asyncio.to_thread(_key_pair, self._at / "accounts.key", self._at / "accounts.pub")
        await self._start_etcd()
        await self.up()
        self.kubeconfig.write_text(self.kubeconfig_text(self.token))
        await self._start_controllers()

    async def _start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, self._peer_port))
        self._etcd = await self._processes.start(
            "etcd",
            [
                str(self.parts.etcd),
                f"--data-dir={self._at / 'etcd'}",
                *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
                *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
                f"--initial-cluster=default={peer}",
                "--log-level=warn",
                # A test's data need not survive the machine.
                "--unsafe-no-fsync",
            ],
        )
        await self._answering(f"{client}/health", "etcd", self._etcd)

    async def up(self) -> None:
        """Start the API server; again, at the same port and with the same data, after ``down``."""
        self._server = await self._at_home(self._started(self._port))

    @asynccontextmanager
    async def elsewhere(self, *flags: str) -> AsyncIterator[Path]:
        """Another API server over the same etcd, for as long as the block lasts; its kubeconfig."""
        (port,) = free_ports(1)
        other = await self._at_home(self._started(port, *flags))
        at = self._at / f"kubeconfig-{port}"
        at.write_text(self.kubeconfig.read_text().replace(self.url, f"https://127.0.0.1:{port}"))
        yield at
        await self._at_home(self._processes.stop(other, limit_s=30.0))

    async def _started(self, port: int, *flags: str) -> ChildProcess:
        folder, url = self._at, f"https://127.0.0.1:{port}"
        server = await self._processes.start(
            f"kube-apiserver-{port}",
            [
                str(self.parts.apiserver),
                f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
                "--bind-address=127.0.0.1",
                f"--secure-port={port}",
                # It makes its own certificate there.
                f"--cert-dir={folder / 'certificates'}",
                f"--token-auth-file={folder / 'tokens.csv'}",
                "--authorization-mode=RBAC",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={folder / 'accounts.pub'}",
                f"--service-account-signing-key-file={folder / 'accounts.key'}",
                f"--service-cluster-ip-range={SERVICE_RANGE}",
                # No controller creates service accounts or takes taints off new nodes.
                "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
                "--allow-privileged=true",
                f"--audit-policy-file={folder / 'audit-policy.json'}",
                f"--audit-log-path={self.audit_log}",
                *flags,
            ],
        )
        await self._answering(f"{url}/readyz", "the API server", server)
        # Its own controller makes it after the start.
        await self._answering(f"{url}/api/v1/namespaces/default", "the namespace default", server)
        return server

    async def _start_controllers(self) -> None:
        if self.parts.controllers is None:
            return
        await self._processes.start(
            "kube-controller-manager",
            [
                str(self.parts.controllers),
                f"--kubeconfig={self.kubeconfig}",
                f"--controllers={','.join(CONTROLLERS)}",
                "--leader-elect=false",
                "--secure-port=0",
                f"--service-cluster-ip-range={SERVICE_RANGE}",
            ],
        )

    async def down(self) -> None:
        """Kill the API server. etcd keeps what it stored."""
        assert self._server is not None, "the API server has not been started"
        self._server.signal_group(signal.SIGKILL)
        await self._at_home(self._processes.stop(self._server))

    def freeze(self) -> None:
        """Stop the API server's process: connections stay open, and nothing is answered."""
        assert self._server is not None, "the API server has not been started"
        self._server.signal_group(signal.SIGSTOP)

    def thaw(self) -> None:
        """End ``freeze``."""
        assert self._server is not None, "the API server has not been started"
        self._server.signal_group(signal.SIGCONT)

    def freeze_etcd(self) -> None:
        """Stop etcd's process: the API server answers, late and with errors."""
        assert self._etcd is not None, "etcd has not been started"
        self._etcd.signal_group(signal.SIGSTOP)

    def thaw_etcd(self) -> None:
        """End ``freeze_etcd``."""
        assert self._etcd is not None, "etcd has not been started"
        self._etcd.signal_group(signal.SIGCONT)

    async def revision(self) -> int:
        """The version of etcd's latest write."""
        url = f"http://127.0.0.1:{self._etcd_port}/v3/maintenance/status"
        async with aiohttp.ClientSession() as session, session.post(url, json={}) as answer:
            return int((await answer.json())["header"]["revision"])

    async def compact(self, revision: int) -> None:
        """Have etcd forget what was before a version; the API server does so by itself every five minutes."""
        url = f"http://127.0.0.1:{self._etcd_port}/v3/kv/compaction"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, json={"revision": str(revision), "physical": True}) as answer,
        ):
            assert answer.status == 200, await answer.text()

    async def sweep(self) -> None:
        """Remove what a test made: definitions with their objects, namespaces, nodes, roles, the rest."""
        for definition in await self._listed("/apis/apiextensions.k8s.io/v1/customresourcedefinitions"):
            await self._undefine(definition)
        for namespace in await self._listed("/api/v1/namespaces"):
            name = namespace["metadata"]["name"]
            for collection in _COLLECTIONS if name not in _KEPT_NAMESPACES else ():
                path = f"{collection.rpartition('/')[0]}/namespaces/{name}/{collection.rpartition('/')[2]}"
                await self._ask("DELETE", f"{path}?fieldSelector=metadata.name!=kubernetes", _AT_ONCE)
            if name not in {"default", *_KEPT_NAMESPACES}:
                await self._ask("DELETE", f"/api/v1/namespaces/{name}")
                # Where there is no namespace controller, and sooner than one.
                await self._ask(
                    "PUT",
                    f"/api/v1/namespaces/{name}/finalize",
                    {**namespace, "metadata": {"name": name}, "spec": {}},
                )
                await self._gone(f"/api/v1/namespaces/{name}")
        for collection in _CLUSTER_COLLECTIONS:
            await self._ask("DELETE", f"{collection}?labelSelector=kubernetes.io/bootstrapping!=rbac-defaults")

    async def _undefine(self, definition: Mapping[str, Any]) -> None:
        spec, name = definition["spec"], definition["metadata"]["name"]
        objects = f"/apis/{spec['group']}/{spec['versions'][0]['name']}"
        for one in await self._listed(f"{objects}/{spec['names']['plural']}"):
            if one["metadata"].get("finalizers"):
                where = one["metadata"].get("namespace")
                path = f"{objects}/namespaces/{where}" if where else objects
                patch = {"metadata": {"finalizers": None}}
                await self._ask("PATCH", f"{path}/{spec['names']['plural']}/{one['metadata']['name']}", patch)
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
        await self._ask("DELETE", path)
        await self._gone(path)

    async def _gone(self, path: str) -> None:
        async def gone() -> bool:
            return (await self._ask("GET", path))[0] == 404

        await eventually(gone, f"{path} is gone", STARTS_WITHIN_S)

    async def _listed(self, path: str) -> tuple[Mapping[str, Any], ...]:
        return tuple((await self._ask("GET", path))[1].get("items", ()))

    async def _at_home(self, work: Coroutine[Any, Any, T]) -> T:
        if asyncio.get_running_loop() is self._home:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._home))

    async def _answering(self, url: str, what: str, child: ChildProcess) -> None:
        async def answers() -> bool:
            assert child.returncode is None, f"{what} ended: {child.tail()}"
            return await self._status(url) == 200

        await eventually(answers, f"{what} is ready; see {child.log_path}", STARTS_WITHIN_S)

    async def _status(self, url: str) -> int:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with self._session() as session, session.get(url) as answer:
                return answer.status
        return 0

    async def _ask(self, method: str, path: str, body: Any = None) -> tuple[int, Mapping[str, Any]]:
        headers = {"Content-Type": "application/merge-patch+json" if method == "PATCH" else "application/json"}
        async with (
            self._session() as session,
            session.request(method, self.url + path, json=body, headers=headers) as answer,
        ):
            return answer.status, await answer.json()

    def _session(self) -> aiohttp.ClientSession:
        # Before its first start there is no certificate to verify it by.
        return aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=aiohttp.ClientTimeout(total=10),
            connector=aiohttp.TCPConnector(ssl=False),
        )


@asynccontextmanager
async def running_api_server(parts: Parts, at: Path) -> AsyncIterator[ApiServer]:
    """An API server of its own, with all its files in a folder."""
    # Nothing of it is kept: there is nothing to wait for.
    async with ChildProcesses(log_dir=at / "logs", stop_limit_s=0.1) as processes:
        server = ApiServer(parts, at, processes)
        await server.start_all()
        yield server


def _key_pair(key: Path, public: Path) -> None:
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    subprocess.run(
        ["openssl", "rsa", "-in", str(key), "-pubout", "-out", str(public)], check=True, capture_output=True
    )
