"""VirtualService: its HTTP routes as ModelRoutes, what they say of time and retries as policies of their pools.

Source: https://istio.io/latest/docs/reference/config/networking/virtual-service/
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from istio.imports.policy_draft import PolicyDraft, SourcedValue, pool_share
from istio.imports.policy_drafts import PolicyDrafts
from istio.imports.route_conditions import RouteConditions
from istio.imports.source_documents import SourceNode
from istio.imports.source_values import duration, flag, integer, text
from policies.quantity import format_duration, parse_duration
from policies.resilience import RetryCondition
from policies.route import MODEL_HEADER, STREAM_HEADER

POLICY_ANNOTATION = "switchgear.dev/policy"
"""Names the policy that an object was exported from."""

_CONDITIONS = frozenset(RetryCondition)
_STATUSES = "retriable-status-codes"
_MOST_MATCHES = 1000

FindPool = Callable[[SourceNode, str], PolicyDraft | None]
"""The pool of a destination in a namespace; None, and it is listed, where there is none."""

_ELSEWHERE: Mapping[str, str] = {
    "fault": "fault injection: write a scenario for switchgear-chaos",
    "mirror": "no mirroring: it doubles the work of GPUs",
    "mirrors": "no mirroring: it doubles the work of GPUs",
    "mirrorPercentage": "no mirroring: it doubles the work of GPUs",
    "corsPolicy": "responses are not rewritten; handle CORS in front of the Envoys",
    "headers": "headers are not rewritten",
    "rewrite": "paths are not rewritten",
}
_NOT_MATCHED: Mapping[str, str] = {
    "sourceLabels": "callers cannot be matched by labels",
    "sourceNamespace": "callers cannot be matched by namespace",
    "queryParams": "queries cannot be matched",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualService:
    """A VirtualService; ``key`` is ``namespace/name``."""

    node: SourceNode
    key: str
    namespace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _HttpRoute:
    """One HTTP route with the conditions of the delegating VirtualService."""

    route: SourceNode
    namespace: str
    name: str
    before: tuple[SourceNode, ...] = ()
    hosts: SourceNode | None = None
    tell_hosts: bool = False


def routes(
    virtual: VirtualService,
    known: Mapping[str, VirtualService],
    pools: PolicyDrafts,
    find: FindPool,
    *,
    tell_hosts: bool,
) -> None:
    """The routes of a VirtualService, those that it delegates to included, and what they say of their pools.

    With ``tell_hosts`` its hosts are conditions of its routes.
    """
    spec = virtual.node.get("spec")
    if spec is None:
        virtual.node.refuse("no spec")
        return
    for name in ("tls", "tcp"):
        if (other := spec.get(name)) is not None:
            other.refuse("only HTTP routes are supported")
    for name in ("gateways", "exportTo"):
        if (other := spec.get(name)) is not None:
            other.refuse("roles and pools select the Envoys of a route, see --listener-port")
    if (hosts := spec.get("hosts")) is not None and not tell_hosts:
        _any_host(virtual, hosts)
    said: list[tuple[tuple[int, int, bool, bool], SourceNode, tuple[PolicyDraft, ...]]] = []
    for way in _ways(virtual, known):
        said += _route(replace(way, tell_hosts=tell_hosts), pools, find)
    if hosts is not None and tell_hosts and not said:
        hosts.refuse("none of its routes was imported")
    # What the route says that asks for least is what holds for a pool.
    for _, node, targets in sorted(said, key=lambda one: one[0], reverse=True):
        for pool in targets:
            _of_pool(node, pools, pool)


def _any_host(virtual: VirtualService, hosts: SourceNode) -> None:
    """Hosts that are not a condition of the routes, because all routes have the same."""
    ours = virtual.node.at("metadata", "annotations", POLICY_ANNOTATION)
    if ours is None and "*" not in caller_hosts(hosts, virtual.namespace):
        hosts.change("not a condition, as all routes have the same hosts: requests for any host match")
    else:
        hosts.take()


def is_delegate(virtual: VirtualService) -> bool:
    """Whether it is only for others to delegate to: it has no hosts of its own."""
    hosts = virtual.node.at("spec", "hosts")
    return hosts is None or hosts.value == []


def _ways(
    virtual: VirtualService, known: Mapping[str, VirtualService], before: tuple[SourceNode, ...] = ()
) -> Iterator[_HttpRoute]:
    spec = virtual.node.get("spec")
    http = spec.get("http") if spec is not None else None
    hosts = spec.get("hosts") if spec is not None else None
    own = virtual.key.partition("/")[2]
    for number, one in enumerate(http.items() if http is not None else ()):
        said = text(one.get("name"))
        name = (
            f"{own}-{said}" if said else own if http is not None and len(http.items()) == 1 else f"{own}-{number}"
        )
        delegate = one.get("delegate")
        if delegate is None:
            yield _HttpRoute(route=one, namespace=virtual.namespace, name=name, before=before, hosts=hosts)
            continue
        target = _delegate(delegate, virtual, known)
        if target is None or before:
            delegate.refuse(
                "Istio supports one level of delegation"
                if before
                else "no VirtualService of this name in the files"
            )
            continue
        delegate.take()
        yield from (replace(way, hosts=hosts) for way in _ways(target, known, before=(one,)))


def _delegate(
    delegate: SourceNode, virtual: VirtualService, known: Mapping[str, VirtualService]
) -> VirtualService | None:
    name, namespace = delegate.get("name"), delegate.get("namespace")
    where = str(namespace.value) if namespace is not None else virtual.namespace
    return known.get(f"{where}/{name.value}") if name is not None else None


def _route(
    way: _HttpRoute, pools: PolicyDrafts, find: FindPool
) -> Iterator[tuple[tuple[int, int, bool, bool], SourceNode, tuple[PolicyDraft, ...]]]:
    """Take up the route; how much it asks for, itself and its pools, where it can be used."""
    node = way.route
    for name, why in _ELSEWHERE.items():
        if (found := node.get(name)) is not None:
            found.refuse(why)
    for name in ("redirect", "directResponse"):
        if (found := node.get(name)) is not None:
            found.refuse("every request of a route goes to an engine; route omitted")
            return
    targets = _targets(node, way.namespace, find)
    if targets is None:
        return
    least: tuple[int, int, bool, bool] | None = None
    for number, match in enumerate(_matches(way)):
        name = way.name if number == 0 else f"{way.name}-{number + 1}"
        conditions = RouteConditions()
        _hosts(way, conditions)
        for one in match:
            _conditions(one, conditions)
        draft = PolicyDraft(kind="ModelRoute", name="", node=match[-1] if match else node)
        pools.listener(draft, conditions.port)
        if not conditions.into(draft, draft.node):
            continue
        least = conditions.rank if least is None else max(least, conditions.rank)
        draft.name = pools.route_names.allocate(name)
        draft.spec["pools"] = [pool_share(pool, weight) for pool, weight in targets]
        pools.add_route(draft, conditions)
    if least is not None:
        yield least, node, tuple(pool for pool, _ in targets)


def _matches(way: _HttpRoute) -> list[tuple[SourceNode, ...]]:
    """Every way in which the matches can hold: any of the delegating one with any of the own."""
    own = _listed(way.route)
    if not way.before:
        return [(one,) for one in own] or [()]
    outer = _listed(way.before[0])
    pairs = [
        tuple(two for two in (one, inner) if two is not None) for one in outer or [None] for inner in own or [None]
    ]
    if len(pairs) > _MOST_MATCHES:
        way.route.refuse(f"with the delegating routes more than {_MOST_MATCHES} matches")
        return []
    return pairs


def _listed(route: SourceNode) -> tuple[SourceNode, ...]:
    matches = route.get("match")
    return matches.items() if matches is not None else ()


def caller_hosts(hosts: SourceNode | None, namespace: str) -> tuple[str, ...]:
    """The names that callers may use for these hosts; ``*`` alone where any will do."""
    names: list[str] = []
    for one in hosts.items() if hosts is not None else ():
        host = text(one)
        if host is None:
            continue
        short = host if "." not in host and host != "*" else ""
        service, where, kind = (*host.split("."), "", "", "")[:3]
        if short:
            service, where, kind = short, namespace, "svc"
        if kind == "svc":
            # Inside a cluster a service is known by all of these.
            tails = ("", f".{where}", f".{where}.svc", f".{where}.svc.cluster.local")
            names += [f"{service}{tail}" for tail in tails]
        names += [host] if host not in names else []
    return ("*",) if "*" in names else tuple(dict.fromkeys(names))


def _hosts(way: _HttpRoute, conditions: RouteConditions) -> None:
    """Where the routes of a file are for different hosts, the host is a condition of each."""
    if way.hosts is not None and way.tell_hosts:
        conditions.authority(way.hosts, caller_hosts(way.hosts, way.namespace))


def _conditions(match: SourceNode, into: RouteConditions) -> None:
    for name, one in match.fields():
        match name:
            case "uri":
                _path(one, into)
            case "ignoreUriCase":
                if flag(one):
                    into.refuse(one, "paths are case-sensitive")
            case "name" | "statPrefix":
                one.take()
            case "method" | "authority" | "scheme":
                _text(f":{name}", one, into)
            case "port":
                into.port = integer(one)
            case "headers" | "withoutHeaders":
                _headers(one, into, there=name == "headers")
            case "gateways":
                one.refuse("roles and pools select the Envoys of a route")
            case _:
                into.refuse(one, _NOT_MATCHED.get(name, "not supported in a ModelRoute"))


def _headers(block: SourceNode, into: RouteConditions, *, there: bool) -> None:
    for name, one in block.fields():
        if _of_the_body(name, one, into, there=there):
            continue
        if there:
            _text(name, one, into)
        else:
            _without(name, one, into)


def _of_the_body(name: str, one: SourceNode, into: RouteConditions, *, there: bool) -> bool:
    """Whether the header stands for a field of the body, as in what ``switchgear export istio`` writes."""
    if name == MODEL_HEADER and there and into.model is None and (model := one.get("exact")) is not None:
        into.model = SourcedValue(value=model.text_value, node=one)
    elif name == STREAM_HEADER and into.stream is None:
        into.stream = SourcedValue(value=there, node=one)
    else:
        return False
    one.take()
    return True


def _string(one: SourceNode) -> tuple[str, str] | None:
    """``exact``, ``prefix`` or ``regex`` and what it says; None where it says none of them."""
    for sort in ("exact", "prefix", "regex"):
        inner = one.get(sort)
        if inner is not None and isinstance(inner.value, str):
            inner.take()
            return sort, inner.value
    return None


def _path(one: SourceNode, into: RouteConditions) -> None:
    said = _string(one)
    if said is None or not said[1]:
        into.refuse(one, "exact, prefix or regex is required")
    else:
        into.path(one, **{said[0]: said[1]})


def _text(name: str, one: SourceNode, into: RouteConditions) -> None:
    said = _string(one)
    if said is not None:
        into.header(name, one, **{said[0]: said[1]})
    elif one.value in ({}, None):
        one.take()
        into.header(name, one, present=True)
    else:
        into.refuse(one, "exact, prefix or regex is required")


def _without(name: str, one: SourceNode, into: RouteConditions) -> None:
    said = _string(one)
    if said is not None:
        one.change("requests without the header do not match here; in Istio they do")
        into.header(name, one, **{said[0]: said[1]}, invert=True)
    else:
        one.take()
        into.header(name, one, present=False)


def _targets(
    node: SourceNode, namespace: str, find: FindPool
) -> list[tuple[PolicyDraft, SourcedValue | None]] | None:
    """The pools of a route and their weights; None, and it is listed, where one of them is not known."""
    listed = node.get("route")
    if listed is None:
        node.refuse("the route has no destination")
        return None
    found: dict[str, tuple[PolicyDraft, SourcedValue | None]] = {}
    for one in listed.items():
        if (rewritten := one.get("headers")) is not None:
            rewritten.refuse("headers are not rewritten")
        destination = one.get("destination")
        pool = find(destination, namespace) if destination is not None else None
        if pool is None or pool.name in found:
            why = "listed twice" if pool is not None else "unknown"
            one.refuse(f"{why}; route omitted, as the others would get its share")
            return None
        found[pool.name] = (pool, integer(one.get("weight")))
    for one in listed.items() if len(found) == 1 else ():
        if (weight := one.get("weight")) is not None:
            weight.leave("the only destination gets every request")
    if len(found) > 1:
        # In Istio, a destination without weight gets no requests if others have a weight.
        return [(pool, weight or SourcedValue(value=0)) for pool, weight in found.values()]
    return [(pool, None) for pool, _ in found.values()] or None


def _of_pool(node: SourceNode, pools: PolicyDrafts, pool: PolicyDraft) -> None:
    """Time limits and retries are a route's in Istio, and its pools' here."""
    policy = pools.policy(pool, node)
    whole_time = node.get("timeout")
    policy.put("timeouts.streaming.total", duration(whole_time))
    policy.put("timeouts.nonStreaming.total", duration(whole_time))
    retries = node.get("retries")
    if retries is None:
        return
    policy.put("retries.attempts", integer(retries.get("attempts")))
    per_try = retries.get("perTryTimeout")
    policy.put("timeouts.nonStreaming.perTry", duration(per_try))
    if per_try is not None:
        per_try.change("limits tries of non-streaming requests; streams use firstToken and betweenTokens")
    base = retries.get("backoff")
    policy.put("retries.backoff.base", duration(base))
    if base is not None and (said := duration(base)) is not None:
        policy.put(
            "retries.backoff.max",
            replace(said, value=_tenfold(str(said.value)), note="10 x base, as in Envoy"),
        )
    _retry_on(retries, policy)
    for name in ("retryRemoteLocalities", "retryIgnorePreviousHosts"):
        if (asked := retries.get(name)) is not None:
            if flag(asked):
                asked.take()
            else:
                asked.refuse("retries go to any untried engine, in any zone")


def _tenfold(said: str) -> str:
    return format_duration(10 * parse_duration(said))


def _retry_on(retries: SourceNode, policy: PolicyDraft) -> None:
    asked = retries.get("retryOn")
    words = text(asked)
    if words is None or asked is None:
        return
    conditions: list[str] = []
    statuses: list[int] = []
    for word in (one.strip() for one in words.split(",")):
        if word in _CONDITIONS:
            conditions.append(word)
        elif word.isdecimal() and len(word) == 3:
            statuses.append(int(word))
        elif word and word != _STATUSES:
            asked.change(f"{word} omitted: unknown condition")
    policy.put("retries.conditions", SourcedValue(value=tuple(dict.fromkeys(conditions)), node=asked))
    policy.put("retries.statuses", SourcedValue(value=tuple(dict.fromkeys(statuses)), node=asked))
