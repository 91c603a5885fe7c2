"""RBAC grants exactly the verbs the control plane uses."""

import ast
import re
from collections.abc import Collection, Iterator, Sequence

import pytest

from deploy import render
from tests.deploy import helm_rendering
from tests.deploy.helm_rendering import Document
from xds_server.k8s import api_resources as resources

Right = tuple[str, str, str]
"""API group, resource and verb."""

POLICY_KINDS = ("enginepools", "modelroutes", "resiliencepolicies")

READ = {
    *(("switchgear.dev", kind, verb) for kind in POLICY_KINDS for verb in ("list", "watch")),
    *(("", "pods", verb) for verb in ("list", "watch")),
    *(("discovery.k8s.io", "endpointslices", verb) for verb in ("list", "watch")),
}
NODES = {("", "nodes", verb) for verb in ("list", "watch")}
WRITE_STATUS = {
    *(("switchgear.dev", kind, "get") for kind in POLICY_KINDS),
    *(("switchgear.dev", f"{kind}/status", "update") for kind in POLICY_KINDS),
    *(("", "events", verb) for verb in ("create", "get", "patch")),
}
GATES = {("", "pods", "get"), ("", "pods/status", "patch")}
GATEWAY = {("", "nodes", "get")}
REPLICAS = {("coordination.k8s.io", "leases", verb) for verb in ("create", "delete", "list", "patch")}
WRITER = {("coordination.k8s.io", "leases", verb) for verb in ("get", "update")}
LEASE = REPLICAS | WRITER


def _rights(role: Document) -> Iterator[Right]:
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield group, resource, verb


def _granted(found: Sequence[Document], account: str, namespace: str) -> set[Right]:
    """Rights of a service account in a namespace."""
    roles = {
        (one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]): one
        for one in helm_rendering.of_kind(found, "Role", "ClusterRole")
    }
    granted: set[Right] = set()
    for binding in helm_rendering.of_kind(found, "RoleBinding", "ClusterRoleBinding"):
        where = binding["metadata"].get("namespace")
        if where not in (None, namespace) or account not in {one["name"] for one in binding["subjects"]}:
            continue
        kind = binding["roleRef"]["kind"]
        granted |= set(_rights(roles[kind, where if kind == "Role" else None, binding["roleRef"]["name"]]))
    return granted


@pytest.mark.parametrize(
    ("values", "namespace", "rights"),
    [
        ("default", "inference", READ | NODES | WRITE_STATUS | LEASE),
        ("default", "elsewhere", READ | NODES | WRITE_STATUS),
        ("namespaced", "inference", READ | REPLICAS),
        ("namespaced", "elsewhere", set()),
        ("everything", "inference", READ | NODES | WRITE_STATUS | GATES | LEASE),
        ("everything", "batch", READ | NODES | WRITE_STATUS | GATES),
        ("everything", "elsewhere", NODES),
    ],
)
def test_control_plane_role_has_least_privilege(values: str, namespace: str, rights: set[Right]) -> None:
    assert _granted(helm_rendering.documents(values), "switchgear", namespace) == rights


@pytest.mark.parametrize(("values", "rights"), [("default", GATEWAY), ("namespaced", set()), ("keda", set())])
def test_gateway_reads_its_node_only_for_its_zone(values: str, rights: set[Right]) -> None:
    found = helm_rendering.documents(values)
    assert _granted(found, "switchgear-gateway", "inference") == rights
    for deployment, template in helm_rendering.pods(found):
        if deployment["metadata"]["name"] == "switchgear-gateway":
            assert template["spec"]["automountServiceAccountToken"] is bool(rights)


def test_namespaced_installation_has_no_cluster_role() -> None:
    assert (
        helm_rendering.of_kind(helm_rendering.documents("namespaced"), "ClusterRole", "ClusterRoleBinding") == []
    )


@pytest.mark.parametrize("values", helm_rendering.VALUE_SETS)
def test_no_role_has_wildcards_or_reads_secrets(values: str) -> None:
    for role in helm_rendering.of_kind(helm_rendering.documents(values), "Role", "ClusterRole"):
        for group, resource, verb in _rights(role):
            assert "*" not in (group, resource, verb)
            assert resource.partition("/")[0] not in ("secrets", "configmaps")
            assert not (resource == "pods" and verb not in ("get", "list", "watch"))


def test_rbac_lease_name_matches_the_arguments() -> None:
    for values in helm_rendering.VALUE_SETS:
        found = helm_rendering.documents(values)
        role = helm_rendering.named(found, "Role", "switchgear-lease")
        limited = [rule for rule in role["rules"] if "update" in rule["verbs"]]
        (container,) = helm_rendering.named(found, "Deployment", "switchgear")["spec"]["template"]["spec"][
            "containers"
        ]
        (lease,) = [word.removeprefix("--lease=") for word in container["args"] if word.startswith("--lease=")]
        assert [
            f"{role['metadata']['namespace']}/{name}" for rule in limited for name in rule["resourceNames"]
        ] == [lease] * len(limited)


_VERBS = {
    "page": {"list"},
    "watch": {"watch"},
    "get": {"get"},
    "create": {"create"},
    "replace": {"update"},
    "merge": {"patch"},
    "strategic": {"patch"},
    "apply": {"patch"},
    "delete": {"delete"},
}
"""RBAC verbs of the methods of ``xds_server.k8s.kube_api.KubeApi``."""


def _asked(source: str, resources: Collection[str]) -> Iterator[tuple[str, str]]:
    """Resource constant and verb of each API call in Python source."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        resource = node.args[0]
        if node.func.attr in _VERBS and isinstance(resource, ast.Name) and resource.id in resources:
            keywords = {word.arg: word.value for word in node.keywords}
            part = keywords.get("subresource")
            subresource = part.value if isinstance(part, ast.Constant) else ""
            for verb in _VERBS[node.func.attr]:
                yield f"{resource.id}/{subresource}" if subresource else resource.id, verb


def test_rbac_grants_every_verb_and_resource_the_code_uses() -> None:
    plural = {name: one.plural for name, one in vars(resources).items() if isinstance(one, resources.ApiResource)}
    granted = {(resource, verb) for _, resource, verb in READ | NODES | WRITE_STATUS | GATES | LEASE | GATEWAY}
    asked = {
        (re.sub(r"^\w+", lambda name: plural[name[0]], resource), verb)
        for path in (render.ROOT / "xds_server").rglob("*.py")
        for resource, verb in _asked(path.read_text(), plural)
    }
    # Guards against a broken scan that finds nothing.
    assert {("leases", "create"), ("leases", "get"), ("leases", "update"), ("nodes", "get")} <= asked
    assert asked <= granted


def test_documentation_lists_every_right() -> None:
    page = (render.ROOT / "docs" / "deploy.md").read_text()
    rows = re.findall(r"^\| (`[^|]+`) \| ([a-z, ]+) \|", page, flags=re.MULTILINE)
    written = {
        (resource, verb)
        for names, verbs in rows
        for resource in re.findall(r"`([a-z/]+)`", names)
        for verb in verbs.strip().split(", ")
    }
    assert written == {
        (resource, verb) for _, resource, verb in READ | NODES | WRITE_STATUS | GATES | LEASE | GATEWAY
    }
