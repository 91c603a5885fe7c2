"""Helm values of vLLM's production-stack as policies: a pool and a route for each model.

The chart continues to run the engines; Switchgear's Envoys replace its router. So settings of pods stay with the
chart, listed by name; settings of request routing are imported or listed.

Source: the values, and the names and labels of Services and pods, of the chart `helm/` in
https://github.com/vllm-project/production-stack.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from istio.imports.draft_validation import ImportResult, import_drafts
from istio.imports.policy_draft import PolicyDraft, SourcedValue, Tree
from istio.imports.policy_drafts import ImportOptions, PolicyDrafts
from istio.imports.source_documents import SourceDocument, SourceNode
from istio.imports.source_values import digits, flag, integer, text

_HEADING = """\
Policies from Helm values of vLLM's production-stack, by `switchgear import production-stack`. Comments give the
source of each value. All else has Switchgear's defaults: `switchgear explain --defaults`.
Measure serviceTime and longestServiceTime on your traffic: the admission limit follows from them."""

_OF_PODS = frozenset(
    {
        "affinity", "annotations", "chatTemplate", "chatTemplateConfigMap", "configs", "containerSecurityContext",
        "enableEngine", "enableTool", "env", "envFromSecret", "extraPorts", "extraVolumeMounts", "extraVolumes",
        "hf_token", "imagePullPolicy", "imagePullSecret", "imagePullSecrets", "initContainer", "keda", "labels",
        "limitCPU", "limitGPUCores", "limitGPUMem", "limitGPUMemPercentage", "limitMemory", "livenessProbe",
        "maxUnavailablePodDisruptionBudget", "nodeName", "nodeSelectorTerms", "pdb", "podAnnotations",
        "priorityClassName", "pvcAccessMode", "pvcAnnotations", "pvcLabels", "pvcMatchLabels", "pvcStorage",
        "readinessProbe", "replicaCount", "repository", "requestCPU", "requestGPUCores", "requestGPUMem",
        "requestGPUMemPercentage", "requestGPUType", "requestMemory", "resources", "runtimeClassName",
        "schedulerName", "securityContext", "serviceAccountName", "serviceMonitor", "servicePort", "shmSize",
        "sidecar", "startupProbe", "storageClass", "strategy", "tag", "tolerations", "tolerationsPolicy",
        "toolCallParser",
    }
)  # fmt: skip
_OF_THE_ROUTERS_PODS = _OF_PODS | {
    "autoscaling", "containerPort", "enableRouter", "ingress", "lmcacheConfig", "lmcacheControllerPort",
    "nodePort", "otel", "route", "serviceAnnotations", "serviceType",
}  # fmt: skip
_OF_VLLM = frozenset(
    {
        "v0", "enablePrefixCaching", "enableChunkedPrefill", "maxModelLen", "dtype", "tensorParallelSize",
        "maxLoras", "gpuMemoryUtilization", "convert", "prometheusMultiprocDir",
    }
)  # fmt: skip
_ELSEWHERE = frozenset(
    {"cacheserverSpec", "lookupserverSpec", "sharedPvcStorage", "sharedStorage", "loraController", "dashboards"}
)
_CHARTS = "stays with the chart"
_ROLES = ("kvRole", "nixlRole")
_STAGES = {"kv_producer": "prefill", "kv_consumer": "decode", "sender": "prefill", "receiver": "decode"}
_SIDECAR = (
    "decode engines need a routing side-car that reads x-prefiller-host-port, for the router called both stages"
)
_ROUTING = {
    "session": "set affinity: {header: KEY}, with the key of routerSpec.sessionKey, in the ModelRoute",
    "prefixaware": "set affinity: {prefix: {}} in the ModelRoute",
    "kvaware": "load balancing follows load, not cache contents",
}
_OF_THE_ROUTER = {
    "sessionKey": "set affinity: {header: KEY} in the ModelRoute",
    "rootPath": "paths are not rewritten",
    "extraArgs": "arguments of the router, which Envoys replace",
    "engineScrapeInterval": "see spec.probe; agents report at once",
    "requestStatsWindow": "Switchgear has its own windows",
    "vllmApiKey": "callers' headers reach engines unchanged",
}
_NO_KEY = "probes send no API key: admit the prober, or set probe.enabled: false"
_GATE = "first_token_gate"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    name: str
    pool: PolicyDraft
    replicas: SourcedValue | None
    stage: str = ""


def from_production_stack(sources: Sequence[SourceDocument], wishes: ImportOptions, release: str) -> ImportResult:
    """The policies that these values come to; ``release`` is the name that the chart was installed by."""
    pools = PolicyDrafts(options=wishes)
    models: list[_Model] = []
    for source in sources:
        root = source.root
        if not isinstance(source.value, dict) or not ({"servingEngineSpec", "routerSpec"} & source.value.keys()):
            root.take()
            root.refuse("not values of production-stack: neither servingEngineSpec nor routerSpec is set")
            continue
        _stays(root, _ELSEWHERE)
        models += _engines(root, pools, wishes, release)
        models += _router(root, pools)
    _routes(pools, models)
    drafts = [*pools.drafts(), *_skeleton(sources, models)]
    return import_drafts(drafts, sources, _HEADING, pools.unknown_models())


def _engines(root: SourceNode, pools: PolicyDrafts, wishes: ImportOptions, release: str) -> Iterator[_Model]:
    serving = root.get("servingEngineSpec")
    if serving is None:
        return
    _stays(serving, _OF_PODS)
    if (key := serving.get("vllmApiKey")) is not None:
        if any(key.value.values()) if isinstance(key.value, dict) else key.value:
            key.refuse("probes send no API key: admit the prober, or set probe.enabled: false")
        else:
            key.take()
    listed = serving.get("modelSpec")
    off = flag(serving.get("enableEngine")) is False
    for one in listed.items() if listed is not None else ():
        if off or (one.get("enabled") is not None and flag(one.get("enabled")) is False):
            one.leave("disabled there")
            continue
        found = _engine(one, serving, pools, wishes, release)
        if found is not None:
            yield found


def _engine(
    one: SourceNode, serving: SourceNode, pools: PolicyDrafts, wishes: ImportOptions, release: str
) -> _Model | None:
    called = one.get("name")
    name, url = text(called), one.get("modelURL")
    if name is None or called is None:
        one.refuse("model without a name")
        return None
    stages = _stages(one)
    if len({stage.value for stage in stages}) > 1 or (not stages and flag(one.at("lmcacheConfig", "enablePD"))):
        one.refuse("whether it prefills or decodes is not stated; pool omitted")
        return None
    _stays(one, _OF_PODS - {"replicaCount"})
    pool = pools.pool(name, name, one)
    if wishes.namespace is not None:
        pool.namespace = SourcedValue(value=wishes.namespace, note="--namespace")
    if (path := text(url)) is not None:
        pool.put("model", SourcedValue(value=path, node=url))
    for stage in stages:
        pool.put("stage", stage)
        if stage.value == "decode" and stage.node is not None:
            stage.node.change(_SIDECAR)
    _arguments(one, pool)
    _other_arguments(one)
    _vllm(one, pool)
    pool.put(
        "kubernetes.service", SourcedValue(value=f"{release}-{name}-engine-service", node=called, note="--release")
    )
    port = serving.get("containerPort")
    pool.put("kubernetes.port", integer(port) or SourcedValue(value=8000, note="the chart's default"))
    _oddities(one)
    own_stage = str(stages[0].value) if stages else ""
    return _Model(name=name, pool=pool, replicas=integer(one.get("replicaCount")), stage=own_stage)


def _vllm(one: SourceNode, pool: PolicyDraft) -> None:
    config = one.get("vllmConfig")
    if config is None:
        return
    _stays(config, _OF_VLLM)
    pool.put("slotsPerEngine", integer(config.get("maxNumSeqs")))
    runner = config.get("runner")
    if runner is not None and text(runner) == "pooling":
        pool.put("probe.enabled", SourcedValue(value=False, node=runner, note="no completions"))
        runner.change("engines without completions cannot be probed; only their agents report")


def _arguments(one: SourceNode, pool: PolicyDraft) -> None:
    """What vLLM's own arguments say of slots, names and the gate."""
    listed = one.at("vllmConfig", "extraArgs")
    if listed is None:
        return
    items = listed.items()
    words: list[tuple[str, SourceNode]] = []
    for item in items:
        # An argument and its value stand in one text or in two.
        words += [(word, item) for word in str(item.value).replace("=", " ", 1).split()]
    for number, (word, item) in enumerate(words):
        following, value = words[number + 1] if number + 1 < len(words) else ("", item)
        match word.replace("_", "-"):
            case "--max-num-seqs":
                if (slots := digits(following)) is None:
                    item.refuse("not an integer")
                else:
                    pool.spec["slotsPerEngine"] = SourcedValue(value=slots, node=item)
                    value.take()
            case "--served-model-name" if following:
                _served_name(pool, SourcedValue(value=following, node=item))
                value.take()
            case "--middleware" if _GATE in following:
                pool.put("firstTokenGate", SourcedValue(value=True, node=item))
                value.take()
            case "--api-key":
                item.refuse(_NO_KEY)
            case "--ssl-keyfile" | "--ssl-certfile":
                item.refuse("engines are called over plain HTTP")
            case _:
                continue
        item.take()


def _other_arguments(one: SourceNode) -> None:
    listed = one.at("vllmConfig", "extraArgs")
    for item in listed.items() if listed is not None else ():
        if not item.taken:
            item.leave(_CHARTS)


def _served_name(pool: PolicyDraft, name: SourcedValue) -> None:
    """Callers name the model by this, instead of by its URL."""
    before = pool.spec.get("model")
    if isinstance(before, SourcedValue) and before.node is not None:
        before.node.leave("callers name the model as --served-model-name does")
    pool.spec["model"] = name


def _oddities(one: SourceNode) -> None:
    gpus = one.get("requestGPU")
    if gpus is not None:
        gpus.change("set by pod annotation: podAnnotations switchgear.dev/gpus")
    if (lora := one.get("enableLoRA")) is not None:
        if flag(lora):
            lora.refuse("the route matches the base model: add routes with adapter: true for its adapters")
        else:
            lora.take()
    ray = one.get("raySpec")
    if ray is not None:
        enabled = ray.get("enabled")
        if enabled is not None and flag(enabled) is False:
            ray.take()
        else:
            ray.refuse("engines are Ray clusters: check which of their pods the Service selects")
    cache = one.get("lmcacheConfig")
    if cache is None:
        return
    for _, part in cache.fields():
        part.leave(_CHARTS)


def _stages(one: SourceNode) -> tuple[SourcedValue, ...]:
    """The stage that each part of it states; one that runs both states none."""
    said = [(part, part.text_value) for name in _ROLES if (part := one.at("lmcacheConfig", name)) is not None]
    arguments = one.at("vllmConfig", "extraArgs")
    for item in arguments.items() if arguments is not None else ():
        said += [(item, role) for role in _STAGES if role in item.text_value]
    return tuple(SourcedValue(value=_STAGES[role], node=part) for part, role in said if role in _STAGES)


def _router(root: SourceNode, pools: PolicyDrafts) -> Iterator[_Model]:
    router = root.get("routerSpec")
    if router is None:
        return
    _stays(router, _OF_THE_ROUTERS_PODS)
    _routing(router)
    discovery = router.get("serviceDiscovery")
    if (part := router.get("k8sServiceDiscoveryType")) is not None:
        part.leave("pools discover engines by their Services")
    if discovery is not None and discovery.text_value == "static":
        discovery.take()
        yield from _static(router, pools)
    else:
        if discovery is not None:
            discovery.leave("pools discover engines by their Services")
        for name in ("staticBackends", "staticModels"):
            if (part := router.get(name)) is not None:
                part.leave("not used there: serviceDiscovery is not static")


def _routing(router: SourceNode) -> None:
    """How the router picks engines."""
    logic = router.get("routingLogic")
    if logic is not None:
        if logic.text_value in {"roundrobin", ""}:
            logic.change("least-request load balancing is used, weighted by slots")
        elif logic.text_value == "disaggregated_prefill":
            logic.change(f"Envoy names the prefill engine in a header: {_SIDECAR}")
        else:
            logic.refuse(_ROUTING.get(logic.text_value, "unknown load balancing method"))
    for name, why in _OF_THE_ROUTER.items():
        if (part := router.get(name)) is not None:
            if _says_nothing(part):
                part.leave("empty there")
            else:
                part.refuse(why)


def _says_nothing(part: SourceNode) -> bool:
    return not (any(part.value.values()) if isinstance(part.value, dict) else part.value)


def _static(router: SourceNode, pools: PolicyDrafts) -> Iterator[_Model]:
    """Engines outside the chart: addresses and models, two lists of the same length."""
    backends, models = router.get("staticBackends"), router.get("staticModels")
    urls, names = _split(backends), _split(models)
    if backends is None or models is None or not urls or len(urls) != len(names):
        (backends or models or router).refuse("staticModels and staticBackends must have the same length")
        return
    for url, name in zip(urls, names, strict=True):
        endpoint = _endpoint(url, backends)
        if endpoint is None:
            continue
        key = f"static|{name}"
        fresh = key not in pools.pools
        pool = pools.pool(key, name.rpartition("/")[2], backends)
        pool.put("model", SourcedValue(value=name, node=models))
        listed = pool.spec.setdefault("endpoints", [])
        if isinstance(listed, list):
            listed.append(endpoint)
        if fresh:
            yield _Model(name=name, pool=pool, replicas=None)


def _split(node: SourceNode | None) -> list[str]:
    said = text(node)
    return [one.strip() for one in said.split(",") if one.strip()] if said else []


def _endpoint(url: str, node: SourceNode) -> dict[str, Tree] | None:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if parts.scheme != "http" or host is None or parts.path.strip("/"):
        node.change(f"{url} omitted: an engine must be http://HOST:PORT")
        return None
    return {"address": SourcedValue(value=host, node=node), "port": SourcedValue(value=port or 80, node=node)}


def _routes(pools: PolicyDrafts, models: Sequence[_Model]) -> None:
    """One route for each model that is served; where several pools serve it, in proportion to their replicas.

    Pools that only prefill get no share: the route names them in ``prefill``.
    """
    by_model: dict[str, list[_Model]] = {}
    for one in models:
        said = one.pool.spec.get("model")
        by_model.setdefault(str(said.value) if isinstance(said, SourcedValue) else one.pool.name, []).append(one)
    for model, served in by_model.items():
        group = [one for one in served if one.stage != "prefill"]
        prefill = [one.pool for one in served if one.stage == "prefill"]
        if not group:
            for pool in prefill:
                pool.node.refuse("no engines decode this model: the pool gets no work")
            continue
        first = group[0].pool
        draft = PolicyDraft(kind="ModelRoute", name=pools.route_names.allocate(first.name), node=first.node)
        pools.listener(draft)
        said = first.spec.get("model")
        draft.spec["match"] = {"model": said if isinstance(said, SourcedValue) else SourcedValue(value=model)}
        draft.spec["pools"] = [_share(one, several=len(group) > 1) for one in group]
        _prefilled(draft, group, prefill)
        pools.routes.append(draft)
        # Of several pools that share requests, the replicas are their weights.
        alone = [*(group if len(group) == 1 else ()), *[one for one in served if one.stage == "prefill"]]
        for one in alone:
            if one.replicas is not None and one.replicas.node is not None:
                one.replicas.node.leave(_CHARTS)


def _prefilled(route: PolicyDraft, targets: Sequence[_Model], prefill: Sequence[PolicyDraft]) -> None:
    """Name the pool that prefills for these targets; a route has one, and all its targets decode."""
    for number, pool in enumerate(prefill):
        if any(one.stage != "decode" for one in targets):
            pool.node.refuse("some engines of the model run both stages: set spec.prefill in a route of their own")
        elif number:
            pool.node.refuse(f"the route to the model names another prefill pool, {prefill[0].name}: merge them")
        else:
            route.spec["prefill"] = {"pool": SourcedValue(value=pool.name)}


def _share(one: _Model, *, several: bool) -> Tree:
    share: dict[str, Tree] = {"pool": SourcedValue(value=one.pool.name)}
    if several:
        share["weight"] = one.replicas or SourcedValue(value=1)
    return share


def _skeleton(sources: Sequence[SourceDocument], models: Sequence[_Model]) -> Iterator[PolicyDraft]:
    """A policy for all pools, to be filled."""
    if models:
        draft = PolicyDraft(kind="ResiliencePolicy", name="default", node=sources[0].root)
        draft.about = (
            "For every pool; the chart has no failure policy. Start in shadow mode and check `switchgear why`."
        )
        draft.put(
            "mode",
            SourcedValue(value="shadow", note="decisions are recorded only; set enforce when you agree"),
        )
        draft.put("limits.maxWait", SourcedValue(value="2s", note="the default; sets the admission limit"))
        yield draft


def _stays(block: SourceNode, names: frozenset[str]) -> None:
    """What stays with the chart."""
    for name, part in block.fields():
        if name in names:
            part.leave(_CHARTS)
