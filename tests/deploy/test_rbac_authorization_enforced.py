"""The control plane as the chart starts it, with no more rights than the chart's RBAC gives.

A real API server judges by the applied Roles, for a token of the chart's service account, and its audit log shows
what it refused. The cluster double allows every request; a proxy in front of it evaluates the rendered Roles.
"""

import json
import re
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import ClientSession, ClientTimeout, web

from chaos.processes import ChildProcesses, free_ports
from deploy import render
from tests.cluster import Cluster
from tests.cluster_double import kubeconfig
from tests.deploy import helm_rendering
from tests.deploy.helm_rendering import Document
from tests.eventually import eventually
from xds_server.k8s.api_resources import ENGINE_POOLS, EVENTS, PODS
from xds_server.k8s.kube_api import ApiError

NAMESPACE = render.NAMESPACE
GATE = "switchgear.dev/engine-ready"
_PATH = re.compile(
    r"/(?:api/(?P<core>[^/]+)|apis/(?P<group>[^/]+)/[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<part>[^/]+))?)?"
)
RBAC_KINDS = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, slots=True)
class AccessReview:
    """A request in terms of RBAC."""

    verb: str
    group: str
    resource: str
    namespace: str
    name: str


def _wishes(request: web.Request) -> Iterator[AccessReview]:
    found = _PATH.fullmatch(request.path)
    if found is None:
        return  # /version and similar paths, open to every account
    resource = "/".join(part for part in (found["resource"], found["part"]) if part)
    rest = (found["group"] or "", resource, found["namespace"] or "", found["name"] or "")
    if request.method == "GET":
        verb = "get" if found["name"] else "watch" if "watch" in request.query else "list"
        yield AccessReview(verb, *rest)
        return
    yield AccessReview(_VERBS[request.method], *rest)
    if request.content_type == "application/apply-patch+yaml":
        # Apply may create the object.
        yield AccessReview("create", *rest[:3], "")


def _granted(found: Sequence[Document], account: str, wish: AccessReview) -> bool:
    """True if RBAC grants the request."""
    for binding in helm_rendering.of_kind(found, "RoleBinding", "ClusterRoleBinding"):
        where = binding["metadata"].get("namespace")
        if account not in {one["name"] for one in binding["subjects"]} or where not in (None, wish.namespace):
            continue
        kind, name = binding["roleRef"]["kind"], binding["roleRef"]["name"]
        (role,) = [
            one
            for one in helm_rendering.of_kind(found, kind)
            if one["metadata"]["name"] == name and (kind == "ClusterRole" or one["metadata"]["namespace"] == where)
        ]
        for rule in role["rules"]:
            names = rule.get("resourceNames")
            if (
                wish.group in rule["apiGroups"]
                and wish.resource in rule["resources"]
                and wish.verb in rule["verbs"]
                and (names is None or wish.name in names)
            ):
                return True
    return False


@dataclass(kw_only=True)
class AuthorizingProxy:
    """Forward allowed requests to ``server``, record denied ones."""

    server: str
    rights: Sequence[Document]
    refused: set[tuple[str, str]] = field(default_factory=set)
    asked: set[tuple[str, str]] = field(default_factory=set)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        for wish in _wishes(request):
            self.asked.add((wish.verb, wish.resource))
            if not _granted(self.rights, "switchgear", wish):
                self.refused.add((wish.verb, wish.resource))
                body = {"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden"}
                return web.json_response(body | {"message": f"{wish} is forbidden"}, status=403)
        headers = {key: request.headers[key] for key in ("Content-Type", "Accept") if key in request.headers}
        body = await request.read()
        async with (
            ClientSession(timeout=ClientTimeout(total=None)) as session,
            session.request(
                request.method, self.server + request.path_qs, data=body or None, headers=headers
            ) as answer,
        ):
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
            await response.prepare(request)
            async for part in answer.content.iter_any():
                await response.write(part)
            await response.write_eof()
            return response


@dataclass(kw_only=True)
class AuditLog:
    """The same of a real API server: what an account asked, and what was refused to it."""

    path: Path
    account: str
    before: int = field(init=False)
    """Bytes of the log that earlier tests filled."""

    def __post_init__(self) -> None:
        self.before = self.path.stat().st_size

    @property
    def asked(self) -> set[tuple[str, str]]:
        return {one for one, _ in self._events()}

    @property
    def refused(self) -> set[tuple[str, str]]:
        return {one for one, code in self._events() if code == 403}

    def _events(self) -> Iterator[tuple[tuple[str, str], int]]:
        # The last line may be half written.
        *lines, _ = self.path.read_bytes()[self.before :].split(b"\n")
        for line in lines:
            event = json.loads(line)
            about = event.get("objectRef")
            if about is not None and event["user"]["username"] == self.account:
                resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
                yield (event["verb"], resource), event["responseStatus"]["code"]


@pytest.fixture
async def cluster(cluster: Cluster) -> Cluster:
    """A cluster with our CRDs, the example policies and a pod with a readiness gate."""
    await cluster.define()
    await cluster.namespace(NAMESPACE)
    await cluster.node("gpu-0", zone="z1")
    (port,) = free_ports(1)
    await cluster.pod(
        "chat-0",
        namespace=NAMESPACE,
        labels={"app": "chat"},
        node="gpu-0",
        ip="127.0.0.1",
        ports={"http": port, "agent-grpc": port},
        readinessGates=[{"conditionType": GATE}],
    )
    for document in helm_rendering.written("examples/policies.yaml"):
        spec = dict(document["spec"])
        if "kubernetes" in spec:
            # EndpointSlices cannot list an address of this machine; pods can have one.
            block = {key: value for key, value in spec["kubernetes"].items() if key != "service"}
            spec["kubernetes"] = {**block, "selector": {"app": "chat"}}
        await cluster.put({**document, "spec": spec}, namespace=NAMESPACE)
    return cluster


@asynccontextmanager
async def _judged(
    cluster: Cluster, rights: Sequence[Document], at: Path
) -> AsyncIterator[AuthorizingProxy | AuditLog]:
    """Who judges the chart's account; ``at`` becomes that account's kubeconfig."""
    if cluster.real is not None:
        await _grant(cluster, rights)
        asked = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600},
        }
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/switchgear/token"
        status, answer = await cluster.ask("POST", path, asked)
        assert status == 201, answer
        at.write_text(cluster.real.kubeconfig_text(answer["status"]["token"]))
        yield AuditLog(path=cluster.real.audit_log, account=f"system:serviceaccount:{NAMESPACE}:switchgear")
        return
    gatekeeper = AuthorizingProxy(server=cluster.server, rights=rights)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", gatekeeper.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        at.write_text(kubeconfig(f"http://127.0.0.1:{runner.addresses[0][1]}"))
        yield gatekeeper
    finally:
        await runner.cleanup()


async def _grant(cluster: Cluster, rights: Sequence[Document]) -> None:
    """Apply the service accounts, Roles and bindings among the documents, as ``helm install`` does."""
    for one in helm_rendering.of_kind(rights, "ServiceAccount", *RBAC_KINDS):
        namespace = one["metadata"].get("namespace", "")
        if namespace and (await cluster.ask("GET", f"/api/v1/namespaces/{namespace}"))[0] == 404:
            await cluster.namespace(namespace)
        where = f"/namespaces/{namespace}" if namespace else ""
        group = "/api/v1" if one["kind"] == "ServiceAccount" else "/apis/rbac.authorization.k8s.io/v1"
        path = f"{group}{where}/{one['kind'].lower()}s/{one['metadata']['name']}"
        status, answer = await cluster.ask(
            "PATCH", path, one, content_type="application/apply-patch+yaml", fieldManager="helm", force="true"
        )
        assert status in {200, 201}, answer


@asynccontextmanager
async def _serving(
    cluster: Cluster, rights: Sequence[Document], folder: Path
) -> AsyncIterator[AuthorizingProxy | AuditLog]:
    """A control plane with the chart's arguments, except addresses and kubeconfig."""
    at = folder / "limited"
    async with _judged(cluster, rights, at) as gatekeeper:
        (container,) = helm_rendering.named(rights, "Deployment", "switchgear")["spec"]["template"]["spec"][
            "containers"
        ]
        ours = ("--listen=", "--admin=", "--state-dir=")
        words = [word.replace("$(POD_NAME)", "switchgear-0") for word in container["args"]]
        body = [word for word in words if not word.startswith(ours)]
        here = ["--listen=127.0.0.1:0", "--admin=127.0.0.1:0", f"--state-dir={folder / 'state'}"]
        async with ChildProcesses(log_dir=folder, stop_limit_s=60) as processes:
            command = [sys.executable, "-m", "xds_server", "serve", *body, *here, f"--kubeconfig={at}"]
            await processes.start("serve", command, ready_within_s=60)
            yield gatekeeper


async def _told(cluster: Cluster) -> bool:
    status = (await cluster.api.get(ENGINE_POOLS, NAMESPACE, "chat")).get("status") or {}
    return any(one["type"] == "Accepted" and one["status"] == "True" for one in status.get("conditions", ()))


async def _gated(cluster: Cluster) -> bool:
    status = (await cluster.api.get(PODS, NAMESPACE, "chat-0"))["status"]
    return any(one["type"] == GATE for one in status["conditions"])


async def test_rbac_allows_watches_status_and_readiness_gates(cluster: Cluster, tmp_path: Path) -> None:
    rights = helm_rendering.documents("engines")
    async with _serving(cluster, rights, tmp_path) as gatekeeper:
        await eventually(lambda: _told(cluster), "the pool's status", 60)
        await eventually(lambda: _gated(cluster), "the pod's gate", 60)
        await eventually(lambda: ("create", "events") in gatekeeper.asked, "an Event of the dead engine", 60)
    assert gatekeeper.refused == set()
    # It let go of what it held, which takes rights as well.
    assert ("delete", "leases") in gatekeeper.asked


async def test_namespaced_installation_works_without_cluster_rights(cluster: Cluster, tmp_path: Path) -> None:
    rights = helm_rendering.documents("namespaced")
    async with _serving(cluster, rights, tmp_path) as gatekeeper:
        await eventually(lambda: ("patch", "leases") in gatekeeper.asked, "its Lease", 60)
    assert {what for _, what in gatekeeper.refused} <= {"nodes"}
    assert not {verb for verb, what in gatekeeper.asked if what != "leases"} - {"list", "watch"}


async def test_what_no_role_grants_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    rights = [one for one in helm_rendering.documents("engines") if one["metadata"]["name"] != "switchgear-lease"]
    async with _serving(cluster, rights, tmp_path) as gatekeeper:
        await eventually(lambda: ("get", "leases") in gatekeeper.refused, "the Lease is refused", 60)
    with pytest.raises(ApiError):
        await cluster.api.get(EVENTS, NAMESPACE, "none")
    assert not await _told(cluster)
