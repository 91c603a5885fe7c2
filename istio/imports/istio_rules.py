"""DestinationRule: a trafficPolicy as a ResiliencePolicy.

Only written fields are imported. For absent ones Switchgear's default applies, not Istio's.

Source: https://istio.io/latest/docs/reference/config/networking/destination-rule/
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from istio.export.destination_tls import MOUNTED_SECRETS
from istio.imports.policy_draft import PolicyDraft, SourcedValue
from istio.imports.source_documents import SourceNode
from istio.imports.source_values import duration, flag, integer, number, text

_MOUNTED: Final = re.compile(rf"{re.escape(MOUNTED_SECRETS)}/([^/]+)/ca\.crt")
_WHY: Final = "engines are verified by certificates of a secret: set credentialName, and mode SIMPLE or MUTUAL"
_OF_THE_MESH: Final = (
    "mesh certificates belong to sidecars: without a sidecar next to the Envoy, requests are sent in plain text"
)
_NOT_TO_ENGINES: Final = frozenset({"", "DISABLE", "ISTIO_MUTUAL"})
"""Modes in which engines themselves speak no TLS; empty: no mode set."""


def apply_tls(part: SourceNode, pool: PolicyDraft) -> None:
    """Set the TLS fields of ``pool``."""
    mode, unchecked = part.get("mode"), part.get("insecureSkipVerify")
    if mode is not None and mode.text_value == "DISABLE":
        part.take()
        return
    if mode is not None and mode.text_value == "ISTIO_MUTUAL":
        part.refuse(_OF_THE_MESH)
        return
    secret = _secret(part)
    if mode is None or mode.text_value not in {"SIMPLE", "MUTUAL"} or secret is None:
        _leave_out(part, pool, _WHY)
        return
    if unchecked is not None and unchecked.value is not False:
        _leave_out(part, pool, "engines must present a valid certificate")
        return
    if unchecked is not None:
        unchecked.take()
    mode.take()
    if mode.text_value == "MUTUAL":
        mode.change("the secret must contain tls.crt and tls.key")
    pool.put("tls.secret", secret)
    _names(part, pool)


def port_tls(settings: SourceNode, pool: PolicyDraft) -> None:
    """Leave out a pool with TLS on only one of its ports: a policy applies to all of them."""
    for one in settings.items():
        mode = one.at("tls", "mode")
        if one.get("tls") is not None and (mode is None or mode.text_value not in _NOT_TO_ENGINES):
            _leave_out(settings, pool, "a policy applies to all engines of a pool, on any port")
            return


def _leave_out(part: SourceNode, pool: PolicyDraft, why: str) -> None:
    part.refuse(f"EnginePool {pool.name} omitted, because requests would be sent in plain text: {why}")
    pool.left_out = True


def _secret(part: SourceNode) -> SourcedValue | None:
    """The name of the secret; marks its node as imported."""
    for name, pattern in (("credentialName", None), ("caCertificates", _MOUNTED)):
        node = part.get(name)
        if node is None or not node.text_value:
            continue
        found = pattern.fullmatch(node.text_value) if pattern is not None else None
        if pattern is None or found is not None:
            node.change("`serve --secrets DIR` needs a folder of this name with ca.crt")
            return SourcedValue(value=found[1] if found is not None else node.text_value, node=node)
    return None


def _names(part: SourceNode, pool: PolicyDraft) -> None:
    sni, listed = part.get("sni"), part.get("subjectAltNames")
    asked = text(sni)
    names = [said for one in (listed.items() if listed is not None else ()) if (said := text(one)) is not None]
    if sni is not None and asked is not None:
        pool.put("tls.serverName", SourcedValue(value=asked, node=sni))
        if not names:
            sni.change("engines must present this name; Istio accepts any name without subjectAltNames")
    if listed is not None and names and names != [asked]:
        pool.put("tls.subjectAltNames", SourcedValue(value=tuple(names), node=listed))
        if any("*" in name for name in names):
            listed.change("* matches one label here, and is literal in Istio")


_PER_PROXY = "limit per Envoy in Istio, for the whole fleet here"
_GATEWAY_ERRORS = (502, 503, 504)


def traffic_policy_parts(policies: tuple[SourceNode, ...]) -> dict[str, SourceNode]:
    """The parts of a trafficPolicy; the first policy with a part wins, as a subset's does in Istio."""
    found: dict[str, SourceNode] = {}
    for policy in policies:
        for name, part in policy.fields():
            found.setdefault(name, part)
    return found


def apply_traffic_policy(parts: dict[str, SourceNode], policy: PolicyDraft, pool: PolicyDraft) -> None:
    """Import these parts of a trafficPolicy into ``policy`` and its ``pool``."""
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
                apply_tls(part, pool)
            case "portLevelSettings":
                port_tls(part, pool)
                part.refuse("a policy applies to all engines of a pool, on any port")
            case _:
                part.refuse("no equivalent in Switchgear")


def _outliers(part: SourceNode, policy: PolicyDraft) -> None:
    every, gateway = part.get("consecutive5xxErrors"), part.get("consecutiveGatewayErrors")
    if every is not None and (every.value or gateway is None or not gateway.value):
        policy.put("breaker.consecutiveErrors", integer(every))
        if gateway is not None and gateway.value == 0:
            gateway.take()
        elif gateway is not None:
            gateway.refuse("one limit counts all consecutive failures; consecutive5xxErrors is set too")
    elif (said := integer(gateway)) is not None and gateway is not None:
        if every is not None:
            every.take()
        policy.put("breaker.consecutiveErrors", said)
        if said.value:
            policy.put("breaker.countStatuses", SourcedValue(value=_GATEWAY_ERRORS, node=gateway))
            gateway.change("connection failures are counted separately, see breaker.consecutiveLocalErrors")
    codes = part.get("outlierDetectionHttpErrorCodes")
    if codes is not None:
        found = [said.value for one in codes.items() if (said := integer(one)) is not None]
        policy.put(
            "breaker.countStatuses",
            SourcedValue(value=tuple(one for one in found if isinstance(one, int)), node=codes),
        )
    if (old := part.get("consecutiveErrors")) is not None:
        old.refuse("deprecated in Istio; use consecutive5xxErrors")
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
                "Envoys never send to ejected engines; breaker.capacityFloorPercent keeps some in rotation"
            )


def _floor(share: SourcedValue, node: SourceNode) -> SourcedValue:
    kept = 100 - share.value if isinstance(share.value, (int, float)) else 0
    node.change("dead or hung engines are always ejected; this limits ejections for errors and slowness")
    return SourcedValue(
        value=kept, node=node, note=f"100 - {share.value:g}" if isinstance(share.value, (int, float)) else ""
    )


def _local_origin(part: SourceNode, policy: PolicyDraft) -> None:
    split, local = part.get("splitExternalLocalOriginErrors"), part.get("consecutiveLocalOriginFailures")
    apart = flag(split)
    if local is not None and apart:
        policy.put("breaker.consecutiveLocalErrors", integer(local))
    elif local is not None:
        local.refuse("no effect in Istio without splitExternalLocalOriginErrors")
    elif split is not None and apart is False:
        split.change("connection failures are counted separately here, see breaker.consecutiveLocalErrors")


def _connections(part: SourceNode, policy: PolicyDraft) -> None:
    if (most := part.at("tcp", "maxConnections")) is not None:
        policy.put("limits.maxConnections", integer(most))
        most.change("limits pending requests too; use limits.maxWait or limits.maxConcurrent for admission")
    policy.put("timeouts.connect", duration(part.at("tcp", "connectTimeout")))
    requests = part.at("http", "http2MaxRequests")
    policy.put("limits.maxConcurrent", integer(requests))
    if requests is not None:
        requests.change(_PER_PROXY)
    retries = part.at("http", "maxRetries")
    if (most_retries := integer(retries)) is not None and retries is not None:
        policy.put("retryBudget.minConcurrency", most_retries)
        policy.put(
            "retryBudget.percent", SourcedValue(value=0, node=retries, note="an absolute number, not a share")
        )
        retries.change(_PER_PROXY)
    _not_of_connections(part)


def _not_of_connections(part: SourceNode) -> None:
    pending, connections = part.at("http", "http1MaxPendingRequests"), part.at("tcp", "maxConnections")
    if pending is not None and connections is not None and pending.value == connections.value:
        pending.take()
    upgrade = part.at("http", "h2UpgradePolicy")
    if upgrade is not None and upgrade.text_value == "DO_NOT_UPGRADE":
        upgrade.take()
    for names, why in (
        (("http", "http1MaxPendingRequests"), "requests queue in engines: limits.maxWait limits the wait"),
        (("http", "maxRequestsPerConnection"), "connections to engines are kept"),
        (
            ("http", "idleTimeout"),
            "idle connections to engines are kept; timeouts.streaming limits silence in a stream",
        ),
        (("http", "h2UpgradePolicy"), "engines are called over HTTP/1.1"),
        (("http", "useClientProtocol"), "engines are called over HTTP/1.1"),
    ):
        if (found := part.at(*names)) is not None and not found.taken:
            found.refuse(why)


def _affinity(sticky: SourceNode) -> str:
    """What to write: affinity belongs to routes, and a rule of Istio to a service."""
    name = text(sticky.get("httpHeaderName")) or text(sticky.at("httpCookie", "name"))
    if name is None:
        return "affinity is by header, cookie or prompt: set spec.affinity of the ModelRoutes"
    key = f"header: {name}" if sticky.get("httpHeaderName") is not None else f"cookie: {{name: {name}}}"
    return f"affinity belongs to routes: set affinity: {{{key}}} in the ModelRoutes to this pool"


def _balancing(part: SourceNode, policy: PolicyDraft) -> None:
    if (simple := part.get("simple")) is not None:
        if simple.text_value in {"LEAST_REQUEST", "LEAST_CONN", "UNSPECIFIED"}:
            simple.take()
        else:
            simple.refuse("least-request load balancing is used; other methods fill slow engines")
    if (sticky := part.get("consistentHash")) is not None:
        sticky.refuse(_affinity(sticky))
    window = part.at("warmup", "duration") or part.get("warmupDurationSecs")
    policy.put("slowStart.window", duration(window))
    policy.put("slowStart.minWeightPercent", number(part.at("warmup", "minimumPercent")))
    if (steep := part.at("warmup", "aggression")) is not None:
        if steep.value == 1:
            steep.take()
        else:
            steep.refuse("slow start is linear")
    if (locality := part.get("localityLbSetting")) is not None:
        _locality(locality, policy)
    if (aware := part.get("zoneAwareLbSetting")) is not None:
        _locality(aware, policy)


def _locality(part: SourceNode, policy: PolicyDraft) -> None:
    enabled = part.get("enabled")
    on = flag(enabled)
    if enabled is not None and on is not None:
        policy.put("zones.preferLocal", SourcedValue(value=on, node=enabled))
    if (shares := part.get("distribute")) is not None:
        _distribute(shares, policy)
    if (failover := part.get("failover")) is not None:
        failover.refuse("failover between regions cannot be set per region")
    order = part.get("failoverPriority")
    if order is not None:
        known = ["topology.kubernetes.io/region", "topology.kubernetes.io/zone"]
        if order.value in (known, known[1:], known[:1]):
            order.take()
        else:
            order.refuse("only zone and region define locality")


def _distribute(shares: SourceNode, policy: PolicyDraft) -> None:
    """Zones that all keep the same share of their traffic set ``maxCrossZonePercent``."""
    leaving = {_leaving(one) for one in shares.items()}
    share = leaving.pop() if len(leaving) == 1 else None
    if share is None:
        shares.refuse("zone weights follow capacity, not fixed numbers")
        return
    policy.put("zones.maxCrossZonePercent", SourcedValue(value=share, node=shares))
    shares.change("traffic leaves a zone only above its capacity, and follows capacity")


def _leaving(one: SourceNode) -> float | None:
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


def _budget(part: SourceNode, policy: PolicyDraft) -> None:
    share, least = part.get("percent"), part.get("minRetryConcurrency")
    policy.put("retryBudget.percent", number(share))
    policy.put("retryBudget.minConcurrency", integer(least))
    for one in (share, least):
        if one is not None:
            one.change(_PER_PROXY)
