"""Istio's objects as policies: hosts become pools, trafficPolicies their policies, HTTP routes ModelRoutes.

A subset is a pool of its own: engines of two versions do not stand in for each other. What a destination rule says
of a host holds for its subsets too, where they say nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from istio.imports.draft_validation import ImportResult, import_drafts
from istio.imports.istio_endpoints import DEFAULT_PORT, ServiceEntry, engines
from istio.imports.istio_routes import POLICY_ANNOTATION, VirtualService, caller_hosts, is_delegate, routes
from istio.imports.istio_rules import apply_traffic_policy, traffic_policy_parts
from istio.imports.policy_draft import PolicyDraft, SourcedValue
from istio.imports.policy_drafts import ImportOptions, PolicyDrafts
from istio.imports.source_documents import SourceDocument, SourceNode
from istio.imports.source_values import integer, text, texts

_HEADING = """\
Policies from Istio's objects, by `switchgear import istio`. Comments give the source of each value.
All else has Switchgear's defaults: `switchgear explain --defaults`."""

_GROUP = "networking.istio.io"
_KINDS = frozenset({"DestinationRule", "VirtualService", "ServiceEntry", "WorkloadEntry"})
_SERVICE = "Service"
_NO_SERVICE = (
    "its labels alone would take the pods of other services as engines: add the Service of {host} to the files, "
    "for its selector"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Object:
    node: SourceNode
    kind: str
    name: str
    namespace: str

    def host(self, name: str) -> str:
        """A host as one name for it: short ones are in the object's own namespace."""
        return name if "." in name else f"{name}.{self.namespace}.svc.cluster.local"


@dataclass(slots=True)
class _Mesh:
    """All objects of the files by what others call them."""

    pools: PolicyDrafts
    rules: dict[str, _Object] = field(default_factory=dict)
    entries: dict[str, _Object] = field(default_factory=dict)
    workloads: list[_Object] = field(default_factory=list)
    virtuals: dict[str, VirtualService] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    ports: dict[str, SourcedValue] = field(default_factory=dict)
    services: dict[str, _Object] = field(default_factory=dict)


def from_istio(sources: Sequence[SourceDocument], wishes: ImportOptions) -> ImportResult:
    """The policies that these objects come to, and what of them was not understood."""
    mesh = _Mesh(pools=PolicyDrafts(options=wishes))
    for source in sources:
        found = _identified(source, wishes)
        if found is not None:
            _file(mesh, found)
    heads = [one for one in mesh.virtuals.values() if not is_delegate(one)]
    tell_hosts = len({caller_hosts(one.node.at("spec", "hosts"), one.namespace) for one in heads}) > 1
    for virtual in heads:
        routes(
            virtual,
            mesh.virtuals,
            mesh.pools,
            lambda node, where: _destination(mesh, node, where),
            tell_hosts=tell_hosts,
        )
    for host, rule in mesh.rules.items():
        _rule(mesh, host, rule)
    fronts = {name for one in heads for name in caller_hosts(one.node.at("spec", "hosts"), one.namespace)}
    for host, entry in mesh.entries.items():
        if host in fronts and f"{host}|" not in mesh.pools.pools:
            entry.node.leave("names hosts that callers use; no route leads to engines of its own")
        else:
            _pool(mesh, host, None, entry.node)
    for pool in mesh.pools.pools.values():
        if pool.left_out and (ports := pool.node.at("spec", "ports")) is not None:
            ports.refuse(f"EnginePool {pool.name} omitted")
    return import_drafts(mesh.pools.drafts(), sources, _HEADING, mesh.pools.unknown_models())


def _identified(source: SourceDocument, wishes: ImportOptions) -> _Object | None:
    """The object when it is one of those that are understood; else it is listed."""
    root = source.root
    version, kind = root.get("apiVersion"), root.get("kind")
    name, namespace = root.at("metadata", "name"), root.at("metadata", "namespace")
    source.label = f"{kind.value if kind else '?'}/{name.value if name else '?'}"
    group = str(version.value).partition("/")[0] if version is not None else ""
    service = kind is not None and kind.text_value == _SERVICE and group == "v1"
    if not service and (kind is None or group != _GROUP or kind.text_value not in _KINDS):
        root.take()
        root.refuse(f"only {', '.join(sorted(_KINDS))} of {_GROUP}, and Service, are supported")
        return None
    for head in ("apiVersion", "kind", "metadata", "status"):
        if (one := root.get(head)) is not None:
            one.take()
    where = wishes.namespace or (str(namespace.value) if namespace is not None else "default")
    return _Object(
        node=root, kind=str(kind.value) if kind else "", name=str(name.value if name else ""), namespace=where
    )


def _file(mesh: _Mesh, found: _Object) -> None:
    spec = found.node.get("spec")
    if spec is None:
        found.node.refuse("no spec")
        return
    match found.kind:
        case "DestinationRule":
            host = text(spec.get("host"))
            if host is None or host in mesh.rules or "*" in host:
                found.node.take()
                found.node.refuse("only one rule per host, for one host, is supported")
                return
            _once(mesh.rules, found.host(host), found)
            _named(mesh, found, host)
        case "ServiceEntry":
            hosts = spec.get("hosts")
            for one in hosts.items() if hosts is not None else ():
                if (host := text(one)) is not None and "*" not in host:
                    _once(mesh.entries, found.host(host), found)
                    _named(mesh, found, host)
                else:
                    one.refuse("hosts with * cannot become pools")
        case "WorkloadEntry":
            mesh.workloads.append(found)
        case "Service":
            for _, one in spec.fields():
                one.leave("read for the selector and ports of subsets; pools discover the rest in the cluster")
            _once(mesh.services, found.host(found.name), found)
        case _:
            key = f"{found.namespace}/{found.name}"
            mesh.virtuals[key] = VirtualService(node=found.node, key=key, namespace=found.namespace)


def _once(known: dict[str, _Object], host: str, found: _Object) -> None:
    first = known.setdefault(host, found)
    if first is not found:
        found.node.take()
        found.node.refuse(f"duplicate {found.kind} for {host}, first at {first.node.place}")


def _named(mesh: _Mesh, found: _Object, host: str) -> None:
    """What we called the pool when we wrote the object, where we did."""
    said = found.node.at("metadata", "annotations", POLICY_ANNOTATION)
    names = str(said.value).split(",") if said is not None else []
    pools = [one.removeprefix("EnginePool/") for one in names if one.startswith("EnginePool/")]
    if len(pools) == 1:
        mesh.names[found.host(host)] = pools[0]


def _destination(mesh: _Mesh, node: SourceNode, namespace: str) -> PolicyDraft | None:
    host, subset = text(node.get("host")), text(node.get("subset"))
    if host is None or "*" in host:
        return None
    full = host if "." in host else f"{host}.{namespace}.svc.cluster.local"
    port = node.at("port", "number")
    if (said := integer(port)) is not None:
        mesh.ports.setdefault(full, said)
    return _pool(mesh, full, subset, node)


def _pool(mesh: _Mesh, host: str, subset: str | None, node: SourceNode) -> PolicyDraft | None:
    """The pool of a host, or of a subset of it, with its engines; None where the subset is not known."""
    key = f"{host}|{subset or ''}"
    if key in mesh.pools.pools:
        return mesh.pools.pools[key]
    rule, entry = mesh.rules.get(host), mesh.entries.get(host)
    labels: dict[str, str] = {}
    if subset is not None:
        part = _subset(rule, subset)
        if part is None:
            node.refuse(f"no DestinationRule in the files defines subset {subset} of {host}")
            return None
        selector = part.get("labels")
        labels = texts(selector)
        if entry is None and _in_cluster(host):
            service = _selector(mesh, host)
            if not service:
                node.refuse(f"subset {subset}: {_NO_SERVICE.format(host=host)}")
                return None
            labels = {**service, **labels}
    short = mesh.names.get(host) or (host.partition(".")[0] if _in_cluster(host) else host)
    pool = mesh.pools.pool(
        key, f"{short}-{subset}" if subset else short, entry.node if entry else node, base=short
    )
    namespace = entry.namespace if entry else _namespace(host) or (rule.namespace if rule else "")
    if namespace and namespace != "default":
        pool.namespace = SourcedValue(value=namespace)
    if entry is not None:
        engines(
            ServiceEntry(node=entry.node, namespace=entry.namespace, workloads=_workloads(mesh, entry)),
            pool,
            labels,
        )
    elif _in_cluster(host):
        _discovered(mesh, host, labels, pool)
    else:
        node.refuse(f"no endpoints of {host} in the files: pool {pool.name} is empty")
    if rule is not None:
        parts = [_subset(rule, subset)] if subset else []
        said = [one.get("trafficPolicy") for one in (*parts, rule.node.get("spec")) if one is not None]
        policies = tuple(one for one in said if one is not None)
        if policies:
            apply_traffic_policy(traffic_policy_parts(policies), mesh.pools.policy(pool, policies[0]), pool)
    return pool


def _subset(rule: _Object | None, name: str) -> SourceNode | None:
    subsets = rule.node.at("spec", "subsets") if rule is not None else None
    for one in subsets.items() if subsets is not None else ():
        said = one.get("name")
        if said is not None and said.value == name:
            said.take()
            return one
    return None


def _in_cluster(host: str) -> bool:
    return ".svc." in f"{host}." and host.count(".") >= 2


def _namespace(host: str) -> str:
    return host.split(".")[1] if _in_cluster(host) else ""


def _workloads(mesh: _Mesh, entry: _Object) -> tuple[SourceNode, ...]:
    """WorkloadEntries that a ServiceEntry selects."""
    selector = entry.node.at("spec", "workloadSelector", "labels")
    wanted = texts(selector)
    if not wanted:
        return ()
    found = []
    for one in mesh.workloads:
        labels = one.node.at("spec", "labels")
        has = labels.value if labels is not None and isinstance(labels.value, dict) else {}
        if one.namespace == entry.namespace and all(has.get(key) == value for key, value in wanted.items()):
            found.append(one.node)
    return tuple(found)


def _discovered(mesh: _Mesh, host: str, labels: dict[str, str], pool: PolicyDraft) -> None:
    """Pods behind a Service; of a subset those with its labels."""
    if labels:
        pool.spec["kubernetes"] = {"selector": {key: SourcedValue(value=one) for key, one in labels.items()}}
    else:
        pool.put("kubernetes.service", SourcedValue(value=host.partition(".")[0]))
    said = mesh.ports.get(host)
    target = _target_port(mesh, host, said)
    pool.put("kubernetes.port", target or said or DEFAULT_PORT)
    if target is None and said is not None and said.node is not None:
        said.node.change("the Service's port there, the pods' port here: correct it if they differ")


def _selector(mesh: _Mesh, host: str) -> dict[str, str]:
    """The selector of the host's Service; empty where the files do not have it."""
    service = mesh.services.get(host)
    found = service.node.at("spec", "selector") if service is not None else None
    said = found.value if found is not None else None
    return {str(key): str(one) for key, one in said.items()} if isinstance(said, dict) else {}


def _target_port(mesh: _Mesh, host: str, port: SourcedValue | None) -> SourcedValue | None:
    """The pods' port behind a port of the host's Service; its only port where none is named."""
    service = mesh.services.get(host)
    ports = service.node.at("spec", "ports") if service is not None else None
    listed = list(ports.items()) if ports is not None else []
    for one in listed:
        number = one.get("port")
        if number is not None and (number.value == port.value if port is not None else len(listed) == 1):
            target = one.get("targetPort") or number
            if isinstance(target.value, int | str) and not isinstance(target.value, bool):
                return SourcedValue(value=target.value, node=target)
    return None


def _rule(mesh: _Mesh, host: str, rule: _Object) -> None:
    """The host of a rule is a pool even where no route leads to it; subsets that are not used are listed."""
    spec = rule.node.get("spec")
    if spec is None:
        return
    subsets = spec.get("subsets")
    used = False
    for one in subsets.items() if subsets is not None else ():
        name = one.get("name")
        if name is not None and f"{host}|{name.value}" in mesh.pools.pools:
            used = True
        else:
            one.refuse("subset without a route")
    if not used:
        _pool(mesh, host, None, rule.node)
    if (exported := spec.get("exportTo")) is not None:
        exported.refuse("visibility of pools cannot be restricted")
    if (selector := spec.get("workloadSelector")) is not None:
        selector.refuse("a policy applies to every caller")
