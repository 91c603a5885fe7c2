"""InferencePools, their related objects and HTTPRoutes as policies.

Source: https://gateway-api-inference-extension.sigs.k8s.io/ and https://gateway-api.sigs.k8s.io/reference/spec/
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from istio.imports.draft_validation import ImportResult, import_drafts
from istio.imports.gateway_routes import POOL_GROUPS, HttpRoute, InferencePoolTargets, routes
from istio.imports.policy_draft import PolicyDraft, SourcedValue, Tree
from istio.imports.policy_drafts import ImportOptions, PolicyDrafts
from istio.imports.route_conditions import RouteConditions
from istio.imports.source_documents import SourceDocument, SourceNode
from istio.imports.source_values import integer, text, texts

_HEADING = """\
Policies from InferencePools, by `switchgear import inferencepool`. Comments give the source of each value.
All else has Switchgear's defaults: `switchgear explain --defaults`."""

_ROUTE_GROUP = "gateway.networking.k8s.io"
_OBJECTIVE_HEADER = "x-gateway-inference-objective"
_PICKER = "Switchgear chooses engines; a second picker would see half of the traffic"
_BATCH = "Sheddable"


@dataclass(slots=True)
class _Read:
    """The objects of the files by kind, in their order."""

    pools: dict[str, SourceNode] = field(default_factory=dict)
    models: list[tuple[str, SourceNode]] = field(default_factory=list)
    objectives: list[tuple[str, SourceNode]] = field(default_factory=list)
    routes: list[HttpRoute] = field(default_factory=list)


def from_inferencepool(sources: Sequence[SourceDocument], wishes: ImportOptions) -> ImportResult:
    """The policies that these objects come to, and what of them was not understood."""
    read = _Read()
    for source in sources:
        _file(read, source, wishes)
    pools = PolicyDrafts(options=wishes)
    found: dict[str, PolicyDraft] = {key: _pool(pools, key, node) for key, node in read.pools.items()}
    for namespace, node in read.models:
        _model(pools, found, namespace, node)
    targets = InferencePoolTargets(pools=pools, by_key=found)
    tell_hosts = len({tuple(one.hosts) for one in read.routes}) > 1
    for route in read.routes:
        routes(route, targets, tell_hosts=tell_hosts)
    for namespace, node in read.objectives:
        _objective(pools, found, namespace, node)
    if not read.routes and not read.models:
        _plain_routes(pools, found)
    return import_drafts(pools.drafts(), sources, _HEADING, pools.unknown_models())


def _file(read: _Read, source: SourceDocument, wishes: ImportOptions) -> None:
    root = source.root
    version, kind = root.get("apiVersion"), root.get("kind")
    name, where = root.at("metadata", "name"), root.at("metadata", "namespace")
    source.label = f"{kind.value if kind else '?'}/{name.value if name else '?'}"
    group = str(version.value).partition("/")[0] if version is not None else ""
    namespace = wishes.namespace or (str(where.value) if where is not None else "default")
    key = f"{namespace}/{name.value if name else ''}"
    for head in ("apiVersion", "kind", "metadata", "status"):
        if (one := root.get(head)) is not None:
            one.take()
    spec = root.get("spec")
    what = kind.value if kind is not None else None
    if spec is None or name is None:
        root.take()
        root.refuse("name and spec are required")
    elif group in POOL_GROUPS and what == "InferencePool":
        if key in read.pools:
            root.take()
            root.refuse(f"duplicate InferencePool {key}, first at {read.pools[key].place}")
        else:
            read.pools[key] = root
    elif group in POOL_GROUPS and what == "InferenceModel":
        read.models.append((namespace, root))
    elif group in POOL_GROUPS and what == "InferenceObjective":
        read.objectives.append((namespace, root))
    elif group == _ROUTE_GROUP and what == "HTTPRoute":
        hosts = spec.get("hostnames")
        names = [text(one) or "" for one in hosts.items()] if hosts is not None else []
        read.routes.append(HttpRoute(node=root, namespace=namespace, name=str(name.value), hosts=tuple(names)))
    else:
        root.take()
        root.refuse("only InferencePool, InferenceModel, InferenceObjective and HTTPRoute are supported")


def _pool(pools: PolicyDrafts, key: str, node: SourceNode) -> PolicyDraft:
    namespace, _, name = key.partition("/")
    pool = pools.pool(key, name, node)
    if namespace != "default":
        pool.namespace = SourcedValue(value=namespace)
    selector = node.at("spec", "selector", "matchLabels") or node.at("spec", "selector")
    labels = texts(selector)
    if labels:
        pool.spec["kubernetes"] = {"selector": {one: SourcedValue(value=value) for one, value in labels.items()}}
    pool.put("kubernetes.port", _port(node))
    for field_name in ("endpointPickerRef", "extensionRef"):
        if (picker := node.at("spec", field_name)) is not None:
            picker.refuse(_PICKER)
    return pool


def _port(node: SourceNode) -> SourcedValue | None:
    ports = node.at("spec", "targetPorts")
    if ports is None:
        return integer(node.at("spec", "targetPortNumber"))
    found: SourcedValue | None = None
    for one in ports.items():
        if found is None:
            found = integer(one.get("number"))
        else:
            one.refuse("an engine has one port: write one pool per port, and split a route among them")
    return found


def _model(pools: PolicyDrafts, found: dict[str, PolicyDraft], namespace: str, node: SourceNode) -> None:
    """A route for a model, and the model of its pool unless already set."""
    named, target = node.at("spec", "modelName"), node.at("spec", "poolRef", "name")
    model, where = text(named), text(target)
    pool = found.get(f"{namespace}/{where}")
    if model is None or pool is None:
        (target or node).refuse(f"no InferencePool {where} in the files" if model else "no model")
        return
    if (reference := node.at("spec", "poolRef")) is not None:
        reference.take()
    others = node.at("spec", "targetModels")
    for one in others.items() if others is not None else ():
        if text(one.get("name")) == model:
            one.take()
        else:
            one.refuse("engines get the model name of the caller: route omitted")
            return
    pool.put("model", SourcedValue(value=model, node=named))
    draft = PolicyDraft(
        kind="ModelRoute", name=pools.route_names.allocate(node.source.label.partition("/")[2]), node=node
    )
    pools.listener(draft)
    conditions = RouteConditions(model=SourcedValue(value=model, node=named))
    conditions.into(draft, node)
    draft.spec["pools"] = [{"pool": SourcedValue(value=pool.name)}]
    if (critical := node.at("spec", "criticality")) is not None and text(critical):
        sheddable = critical.value == _BATCH
        draft.put("priority", SourcedValue(value="batch" if sheddable else "interactive", node=critical))
        if not sheddable and critical.value != "Critical":
            critical.change("two classes: everything not shed first is interactive")
    pools.add_route(draft, conditions)


def _objective(pools: PolicyDrafts, found: dict[str, PolicyDraft], namespace: str, node: SourceNode) -> None:
    """Requests that name an objective whose priority is below zero are batch."""
    target, priority = node.at("spec", "poolRef", "name"), node.at("spec", "priority")
    pool = found.get(f"{namespace}/{text(target)}")
    if pool is None:
        (target or node).refuse("no such InferencePool in the files")
        return
    if (reference := node.at("spec", "poolRef")) is not None:
        reference.take()
    said = integer(priority)
    if priority is None or said is None or not isinstance(said.value, int) or said.value >= 0:
        if priority is not None:
            priority.change("two classes: 0 and above, and no objective, are interactive")
        return
    name = node.source.label.partition("/")[2]
    draft = PolicyDraft(kind="ModelRoute", name=pools.route_names.allocate(name), node=node)
    conditions = RouteConditions()
    conditions.header(_OBJECTIVE_HEADER, node, exact=name)
    pools.listener(draft)
    conditions.into(draft, node)
    draft.spec["pools"] = [{"pool": SourcedValue(value=pool.name)}]
    draft.put("priority", SourcedValue(value="batch", node=priority))
    priority.change("two classes: below 0 is batch")
    pools.add_route(draft, conditions)


def _plain_routes(pools: PolicyDrafts, found: dict[str, PolicyDraft]) -> None:
    """Where nothing says which requests go to a pool, those for its model do."""
    for pool in found.values():
        draft = PolicyDraft(kind="ModelRoute", name=pools.route_names.allocate(pool.name), node=pool.node)
        draft.about = "No route in the files; requests for its model go to this pool."
        pools.listener(draft)
        model: Tree = pool.spec.get("model", SourcedValue(value=pool.name, note="its model"))
        draft.spec["match"] = {"model": model}
        draft.spec["pools"] = [{"pool": SourcedValue(value=pool.name)}]
        pools.routes.append(draft)
