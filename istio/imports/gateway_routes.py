"""HTTPRoute: its rules as ModelRoutes, and what they say of time and retries as policies of their pools."""

from dataclasses import dataclass

from istio.imports.policy_draft import PolicyDraft, SourcedValue, pool_share
from istio.imports.policy_drafts import PolicyDrafts
from istio.imports.route_conditions import RouteConditions
from istio.imports.source_documents import SourceNode
from istio.imports.source_values import duration, integer, text

POOL_GROUPS = frozenset({"inference.networking.k8s.io", "inference.networking.x-k8s.io"})

_MODEL_HEADER = "x-gateway-model-name"
"""Set by the inference extension's body-based router; Envoys here read the body themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRoute:
    """An HTTPRoute and the hosts it is for."""

    node: SourceNode
    namespace: str
    name: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InferencePoolTargets:
    """The pools that routes may lead to, by ``namespace/name`` of their InferencePool."""

    pools: PolicyDrafts
    by_key: dict[str, PolicyDraft]


def routes(route: HttpRoute, targets: InferencePoolTargets, *, tell_hosts: bool) -> None:
    """The ModelRoutes of an HTTPRoute; with ``tell_hosts`` its hosts are conditions of each."""
    spec = route.node.get("spec")
    if spec is None:
        return
    hosts = spec.get("hostnames")
    if hosts is not None and not tell_hosts:
        hosts.change("not a condition, as all routes have the same hosts: requests for any host match")
    port = _listener(spec)
    written = False
    rules = spec.get("rules")
    listed = rules.items() if rules is not None else ()
    for number, rule in enumerate(listed):
        found = _targets(rule, route, targets)
        if found is None:
            continue
        for pool, _ in found:
            _of_pool(rule, targets.pools, pool)
        said = text(rule.get("name"))
        like = f"{route.name}-{said or number}" if said or len(listed) > 1 else route.name
        matches = rule.get("matches")
        for match in matches.items() if matches is not None else (rule,):
            conditions = RouteConditions()
            if tell_hosts and hosts is not None:
                conditions.authority(hosts, route.hosts)
            if match is not rule:
                _conditions(match, conditions)
            draft = PolicyDraft(kind="ModelRoute", name="", node=match)
            targets.pools.listener(draft, port)
            if conditions.into(draft, match):
                draft.name = targets.pools.route_names.allocate(like)
                draft.spec["pools"] = [pool_share(pool, weight) for pool, weight in found]
                targets.pools.add_route(draft, conditions)
                written = True
    if hosts is not None and tell_hosts and not written:
        hosts.refuse("none of its rules was imported")


def _listener(spec: SourceNode) -> SourcedValue | None:
    """The port of the only Gateway listener that is named by its port."""
    parents = spec.get("parentRefs")
    found: SourcedValue | None = None
    for one in parents.items() if parents is not None else ():
        said = integer(one.get("port"))
        if said is not None and found is None:
            found = said
            one.take()
        else:
            one.refuse("Envoys do not use the Gateway's listeners: set --listener-port")
    return found


def _conditions(match: SourceNode, into: RouteConditions) -> None:
    for name, one in match.fields():
        match name:
            case "path":
                _path(one, into)
            case "headers":
                for header in one.items():
                    _header(header, into)
            case "method":
                if (method := text(one)) is not None:
                    into.header(":method", one, exact=method)
            case _:
                into.refuse(one, "not supported in a ModelRoute")


def _path(one: SourceNode, into: RouteConditions) -> None:
    sort, value = text(one.get("type")) or "PathPrefix", text(one.get("value")) or "/"
    match sort:
        case "PathPrefix":
            into.path(one, prefix=value)
            if not value.endswith("/"):
                one.change(f"{value} is a plain prefix here and matches {value}x too")
        case "Exact":
            into.path(one, exact=value)
        case "RegularExpression":
            into.path(one, regex=value)
        case _:
            into.refuse(one, "unknown type of path match")


def _header(header: SourceNode, into: RouteConditions) -> None:
    sort, name, value = text(header.get("type")) or "Exact", text(header.get("name")), header.get("value")
    said = text(value)
    if name is None or said is None or sort not in {"Exact", "RegularExpression"}:
        into.refuse(header, "unknown type of header match")
    elif name.lower() == _MODEL_HEADER and sort == "Exact" and into.model is None:
        into.model = SourcedValue(value=said, node=header)
        header.change("Envoys read the model from the body instead of this header")
    elif sort == "Exact":
        into.header(name, header, exact=said)
    else:
        into.header(name, header, regex=said)


def _targets(
    rule: SourceNode, route: HttpRoute, targets: InferencePoolTargets
) -> list[tuple[PolicyDraft, SourcedValue | None]] | None:
    for name, why in (
        ("filters", "no rewrites, redirects or mirroring"),
        ("sessionPersistence", "set spec.affinity, with mode: strict, in the ModelRoute"),
    ):
        if (part := rule.get(name)) is not None:
            part.refuse(why)
    listed = rule.get("backendRefs")
    if listed is None or not listed.items():
        rule.refuse("the rule has no backendRefs")
        return None
    found: list[tuple[PolicyDraft, SourcedValue | None]] = []
    for one in listed.items():
        pool = _target(one, route, targets)
        if pool is None or any(pool is before for before, _ in found):
            one.refuse("unknown or listed twice; rule omitted, as the others would get its share")
            rule.refuse("rule omitted")
            return None
        if (filters := one.get("filters")) is not None:
            filters.refuse("no rewrites, redirects or mirroring")
        found.append((pool, integer(one.get("weight"))))
    if len(found) > 1:
        # The weight of one that says none is 1.
        return [(pool, weight or SourcedValue(value=1)) for pool, weight in found]
    (one,) = listed.items()
    if (weight := one.get("weight")) is not None:
        if weight.value == 0:
            rule.refuse("rule omitted: its only backend has weight 0")
            return None
        weight.leave("the only backend gets every request")
    return [(pool, None) for pool, _ in found]


def _target(one: SourceNode, route: HttpRoute, targets: InferencePoolTargets) -> PolicyDraft | None:
    name, namespace = text(one.get("name")), text(one.get("namespace")) or route.namespace
    kind, group = text(one.get("kind")) or "Service", text(one.get("group")) or ""
    port = one.get("port")
    if kind == "InferencePool":
        if group and group not in POOL_GROUPS:
            return None
        if port is not None:
            port.leave("engines are called at the port of the InferencePool")
        return targets.by_key.get(f"{namespace}/{name}")
    if kind != "Service" or group or name is None:
        return None
    key = f"{namespace}/service/{name}"
    fresh = key not in targets.pools.pools
    pool = targets.pools.pool(key, name, one)
    if fresh:
        if namespace != "default":
            pool.namespace = SourcedValue(value=namespace)
        pool.put("kubernetes.service", SourcedValue(value=name, node=one.get("name")))
        pool.put(
            "kubernetes.port", integer(port) or SourcedValue(value=8000, note="not set there: vLLM's default")
        )
        if port is not None:
            port.change("the Service's port there, the pods' port here: correct it if they differ")
    elif port is not None:
        port.leave("the first reference to the Service sets the port of the pool")
    return pool


def _of_pool(rule: SourceNode, pools: PolicyDrafts, pool: PolicyDraft) -> None:
    """Time limits and retries are a rule's there, and its pools' here."""
    policy = pools.policy(pool, rule)
    request, per_try = rule.at("timeouts", "request"), rule.at("timeouts", "backendRequest")
    policy.put("timeouts.streaming.total", duration(request))
    policy.put("timeouts.nonStreaming.total", duration(request))
    policy.put("timeouts.nonStreaming.perTry", duration(per_try))
    if per_try is not None:
        per_try.change("limits tries of non-streaming requests; streams use firstToken and betweenTokens")
    retry = rule.get("retry")
    if retry is None:
        return
    policy.put("retries.attempts", integer(retry.get("attempts")))
    policy.put("retries.backoff.base", duration(retry.get("backoff")))
    codes = retry.get("codes")
    if codes is not None:
        found = [said.value for one in codes.items() if (said := integer(one)) is not None]
        policy.put(
            "retries.statuses", SourcedValue(value=tuple(one for one in found if isinstance(one, int)), node=codes)
        )
