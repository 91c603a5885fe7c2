"""DestinationRule: what a trafficPolicy comes to in a ResiliencePolicy.

Only what is written is taken over. Where a rule is silent Switchgear's own default holds, not Istio's.

Source: https://istio.io/latest/docs/reference/config/networking/destination-rule/
"""

from collections.abc import Iterator, Mapping

from istio.imports.draft import Draft, Said
from istio.imports.istio_tls import port_tls, tls
from istio.imports.reading import Node
from istio.imports.values import duration, flag, number, whole

_PER_PROXY = "each Envoy's own limit in Istio, the whole fleet's here"
_GATEWAY_ERRORS = (502, 503, 504)


def settings(policies: tuple[Node, ...]) -> dict[str, Node]:
    """The parts of a trafficPolicy; of several the first that has a part wins, as a subset's does in Istio."""
    found: dict[str, Node] = {}
    for policy in policies:
        for name, part in policy.fields():
            found.setdefault(name, part)
    return found


def apply(parts: dict[str, Node], policy: Draft, pool: Draft) -> None:
    """Say in ``policy`` and its ``pool`` what these parts of a trafficPolicy say."""
    for name, part in parts.items():
        match name:
            case "outlierDetection":
                _outliers(part, policy)
            case "connectionPool":
                _connections(part, policy)
            case "loadBalancer":
                _balancing(part, policy)
            case "retryBudget":
                _budget(part, policy)
            case "tls":
                tls(part, pool)
            case "portLevelSettings":
                port_tls(part, pool)
                part.refuse("a policy holds for all of a pool's engines, whatever their port")
            case _:
                part.refuse("Switchgear has nothing that stands for it")


def _outliers(part: Node, policy: Draft) -> None:
    every, gateway = part.get("consecutive5xxErrors"), part.get("consecutiveGatewayErrors")
    if every is not None and (every.value or gateway is None or not gateway.value):
        policy.put("breaker.consecutiveErrors", whole(every))
        if gateway is not None and gateway.value == 0:
            gateway.take()
        elif gateway is not None:
            gateway.refuse("one limit counts all failures in a row; consecutive5xxErrors is said as well")
    elif (said := whole(gateway)) is not None and gateway is not None:
        if every is not None:
            every.take()
        policy.put("breaker.consecutiveErrors", said)
        if said.value:
            policy.put("breaker.countStatuses", Said(value=_GATEWAY_ERRORS, node=gateway))
            gateway.change("failures of a connection count apart, see breaker.consecutiveLocalErrors")
    codes = part.get("outlierDetectionHttpErrorCodes")
    if codes is not None:
        found = [said.value for one in codes.items() if (said := whole(one)) is not None]
        policy.put(
            "breaker.countStatuses", Said(value=tuple(one for one in found if isinstance(one, int)), node=codes)
        )
    if (old := part.get("consecutiveErrors")) is not None:
        old.refuse("Istio itself has given this field up; say consecutive5xxErrors")
    _local_origin(part, policy)
    policy.put("breaker.interval", duration(part.get("interval")))
    base = part.get("baseEjectionTime")
    policy.put("breaker.localEjection", duration(base))
    if (most := part.get("maxEjectionPercent")) is not None and (share := number(most)) is not None:
        policy.put("breaker.capacityFloorPercent", _floor(share, most))
    if (least := part.get("minHealthPercent")) is not None:
        if least.value == 0:
            least.take()
        else:
            least.refuse(
                "Envoys here never send to engines that are out; breaker.capacityFloorPercent keeps some in"
            )


def _floor(share: Said, node: Node) -> Said:
    kept = 100 - share.value if isinstance(share.value, (int, float)) else 0
    node.change("engines that are dead or hung leave in any case; this bounds what errors and slowness take out")
    return Said(
        value=kept, node=node, note=f"100 - {share.value:g}" if isinstance(share.value, (int, float)) else ""
    )


def _local_origin(part: Node, policy: Draft) -> None:
    split, local = part.get("splitExternalLocalOriginErrors"), part.get("consecutiveLocalOriginFailures")
    apart = flag(split)
    if local is not None and apart:
        policy.put("breaker.consecutiveLocalErrors", whole(local))
    elif local is not None:
        local.refuse("it has no effect in Istio without splitExternalLocalOriginErrors")
    elif split is not None and apart is False:
        split.change("connection failures count apart from answers here, see breaker.consecutiveLocalErrors")


def _connections(part: Node, policy: Draft) -> None:
    if (most := part.at("tcp", "maxConnections")) is not None:
        policy.put("limits.maxConnections", whole(most))
        most.change(
            "it bounds pending requests, too; how much is let in is limits.maxWait or limits.maxConcurrent"
        )
    policy.put("timeouts.connect", duration(part.at("tcp", "connectTimeout")))
    requests = part.at("http", "http2MaxRequests")
    policy.put("limits.maxConcurrent", whole(requests))
    if requests is not None:
        requests.change(_PER_PROXY)
    retries = part.at("http", "maxRetries")
    if (most_retries := whole(retries)) is not None and retries is not None:
        policy.put("retryBudget.minConcurrency", most_retries)
        policy.put("retryBudget.percent", Said(value=0, node=retries, note="a number and no share"))
        retries.change(_PER_PROXY)
    _not_of_connections(part)


def _not_of_connections(part: Node) -> None:
    pending, connections = part.at("http", "http1MaxPendingRequests"), part.at("tcp", "maxConnections")
    if pending is not None and connections is not None and pending.value == connections.value:
        pending.take()
    upgrade = part.at("http", "h2UpgradePolicy")
    if upgrade is not None and upgrade.word == "DO_NOT_UPGRADE":
        upgrade.take()
    for names, why in (
        (("http", "http1MaxPendingRequests"), "requests wait in engines here: limits.maxWait says how long"),
        (("http", "maxRequestsPerConnection"), "connections to engines are kept"),
        (
            ("http", "idleTimeout"),
            "idle connections to engines are kept; silence in a stream is timeouts.streaming",
        ),
        (("http", "h2UpgradePolicy"), "engines are asked over HTTP/1.1"),
        (("http", "useClientProtocol"), "engines are asked over HTTP/1.1"),
    ):
        if (found := part.at(*names)) is not None and not found.taken:
            found.refuse(why)


def _balancing(part: Node, policy: Draft) -> None:
    if (simple := part.get("simple")) is not None:
        if simple.word in {"LEAST_REQUEST", "LEAST_CONN", "UNSPECIFIED"}:
            simple.take()
        else:
            simple.refuse("engines are picked by the fewest requests; anything else fills slow ones")
    if (sticky := part.get("consistentHash")) is not None:
        sticky.refuse("Switchgear does not tie callers to engines")
    window = part.at("warmup", "duration") or part.get("warmupDurationSecs")
    policy.put("slowStart.window", duration(window))
    policy.put("slowStart.minWeightPercent", number(part.at("warmup", "minimumPercent")))
    if (steep := part.at("warmup", "aggression")) is not None:
        if steep.value == 1:
            steep.take()
        else:
            steep.refuse("an engine's share grows in a straight line")
    if (locality := part.get("localityLbSetting")) is not None:
        _locality(locality, policy)
    if (aware := part.get("zoneAwareLbSetting")) is not None:
        _locality(aware, policy)


def _locality(part: Node, policy: Draft) -> None:
    enabled = part.get("enabled")
    on = flag(enabled)
    if enabled is not None and on is not None:
        policy.put("zones.preferLocal", Said(value=on, node=enabled))
    if (shares := part.get("distribute")) is not None:
        _distribute(shares, policy)
    if (failover := part.get("failover")) is not None:
        failover.refuse("which region stands in for which is not said one by one")
    order = part.get("failoverPriority")
    if order is not None:
        known = ["topology.kubernetes.io/region", "topology.kubernetes.io/zone"]
        if order.value in (known, known[1:], known[:1]):
            order.take()
        else:
            order.refuse("only zone and region decide how near an engine is")


def _distribute(shares: Node, policy: Draft) -> None:
    """Zones that keep the same share of their traffic for themselves are a bound on what may leave."""
    leaving = {_leaving(one) for one in shares.items()}
    share = leaving.pop() if len(leaving) == 1 else None
    if share is None:
        shares.refuse("shares between zones follow the capacity of their engines, not fixed numbers")
        return
    policy.put("zones.maxCrossZonePercent", Said(value=share, node=shares))
    shares.change("what leaves goes where capacity is, and none leaves that the own zone can hold")


def _leaving(one: Node) -> float | None:
    origin, to = one.get("from"), one.get("to")
    if origin is None or to is None or not isinstance(to.value, dict) or not isinstance(origin.value, str):
        return None
    parts = list(_percentages(to.value))
    own = to.value.get(origin.value)
    if len(parts) != len(to.value) or sum(parts) != 100 or not isinstance(own, (int, float)):
        return None
    return 100 - own


def _percentages(shares: Mapping[str, object]) -> Iterator[float]:
    yield from (one for one in shares.values() if isinstance(one, (int, float)) and not isinstance(one, bool))


def _budget(part: Node, policy: Draft) -> None:
    share, least = part.get("percent"), part.get("minRetryConcurrency")
    policy.put("retryBudget.percent", number(share))
    policy.put("retryBudget.minConcurrency", whole(least))
    for one in (share, least):
        if one is not None:
            one.change(_PER_PROXY)
