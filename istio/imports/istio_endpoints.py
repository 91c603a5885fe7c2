"""ServiceEntry and WorkloadEntry: the engines of a pool.

Source: https://istio.io/latest/docs/reference/config/networking/service-entry/
"""

from dataclasses import dataclass

from istio.imports.policy_draft import PolicyDraft, SourcedValue, Tree
from istio.imports.source_documents import SourceNode
from istio.imports.source_values import integer, text, texts
from istio.live.desired_state import ENGINE_ANNOTATION, POOL_LABEL, SERVING_LABEL

DEFAULT_PORT = SourcedValue(value=8000, note="not set there: vLLM's default")
_OURS = frozenset({POOL_LABEL, SERVING_LABEL})
_PLACES = {"topology.kubernetes.io/zone": "zone", "topology.kubernetes.io/region": "region"}
_WHY_PORT = "port unknown: the entry has no HTTP port"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceEntry:
    """A ServiceEntry, or the part of one that is a host's: its engines and the port that they are asked at."""

    node: SourceNode
    namespace: str
    workloads: tuple[SourceNode, ...]


def engines(entry: ServiceEntry, pool: PolicyDraft, only: dict[str, str]) -> None:
    """Give ``pool`` the engines of ``entry`` that have the labels ``only``."""
    spec = entry.node.get("spec")
    if spec is None:
        return
    port = _port(spec)
    listed = spec.get("endpoints")
    written = listed.items() if listed is not None else ()
    found: list[Tree] = [
        endpoint for one in (*written, *entry.workloads) if (endpoint := _endpoint(one, port, only)) is not None
    ]
    if not found and listed is None and not entry.workloads:
        found = _by_name(spec, port)
    if found:
        pool.spec["endpoints"] = found
    _selected(spec, entry, pool, port[1])
    if "endpoints" not in pool.spec and "kubernetes" not in pool.spec:
        _empty(spec, pool)
    for name, why in (
        ("addresses", "callers use the address of an Envoy; no virtual addresses"),
        ("exportTo", "visibility of pools cannot be restricted"),
        ("subjectAltNames", "set them in the DestinationRule, as trafficPolicy.tls.subjectAltNames"),
    ):
        if (field := spec.get(name)) is not None:
            field.refuse(why)
    if (location := spec.get("location")) is not None:
        location.leave("decides on mTLS between sidecars")


def _empty(spec: SourceNode, pool: PolicyDraft) -> None:
    """List that the pool has no engines, and the ports that nothing is called at."""
    if (hosts := spec.get("hosts")) is not None:
        hosts.refuse(
            f"pool {pool.name} is empty: no endpoints or workloads, and no DNS resolution of an HTTP port"
        )
    if (ports := spec.get("ports")) is not None:
        ports.refuse("no engine to call at a port")


def _port(spec: SourceNode) -> tuple[str, SourcedValue | None]:
    """Name and number of the first port that speaks HTTP; the others are listed."""
    ports = spec.get("ports")
    chosen: tuple[str, SourcedValue | None] = ("", None)
    for one in ports.items() if ports is not None else ():
        protocol = str(getattr(one.get("protocol"), "value", "HTTP")).upper()
        if chosen[1] is not None or protocol not in {"HTTP", "HTTP2", "GRPC", "TCP"}:
            one.refuse("a pool has one HTTP port")
            continue
        said = integer(one.get("targetPort")) or integer(one.get("number"))
        chosen = (text(one.get("name")) or "", said)
        one.take()
    return chosen


def _endpoint(
    one: SourceNode, port: tuple[str, SourcedValue | None], only: dict[str, str]
) -> dict[str, Tree] | None:
    spec = one.get("spec") if one.steps == () else one
    if spec is None:
        return None
    labels = texts(spec.get("labels"))
    if any(labels.get(name) != value for name, value in only.items()):
        return None
    endpoint: dict[str, Tree] = {}
    address = spec.get("address")
    if (host := text(address)) is None:
        spec.refuse("no address")
        return None
    if host.startswith("unix://"):
        spec.refuse("engines are called over TCP")
        return None
    endpoint["address"] = SourcedValue(value=host, node=address)
    own = spec.at("ports", port[0]) if port[0] else None
    number = integer(own) or port[1]
    if number is None:
        spec.refuse(_WHY_PORT)
        return None
    endpoint["port"] = number
    if one.steps == () and (name := _name(one)) is not None:
        endpoint["name"] = name
    _locality(spec, labels, endpoint)
    if (weight := integer(spec.get("weight"))) is not None:
        endpoint["weight"] = weight
    if carried := {
        key: SourcedValue(value=one) for key, one in labels.items() if key not in _OURS | _PLACES.keys()
    }:
        endpoint["labels"] = dict(carried)
    return endpoint


def _name(one: SourceNode) -> SourcedValue | None:
    """What we called the engine when we wrote the entry, or the entry's own name."""
    ours = one.at("metadata", "annotations", ENGINE_ANNOTATION)
    if ours is not None and "/" in ours.text_value:
        return SourcedValue(value=ours.text_value.partition("/")[2], node=ours)
    name = one.at("metadata", "name")
    return SourcedValue(value=name.text_value, node=name) if name is not None and name.text_value else None


def _locality(spec: SourceNode, labels: dict[str, str], endpoint: dict[str, Tree]) -> None:
    """``region/zone/subzone``, or the labels that Kubernetes has for it."""
    for label, name in _PLACES.items():
        if value := labels.get(label):
            endpoint[name] = SourcedValue(value=value, node=spec.at("labels", label))
    locality = spec.get("locality")
    said = text(locality)
    if said is None or locality is None:
        return
    region, _, rest = said.partition("/")
    zone, _, subzone = rest.partition("/")
    if zone:
        endpoint["zone"] = SourcedValue(value=zone, node=locality)
    if region:
        endpoint["region"] = SourcedValue(value=region, node=locality)
    if subzone and subzone != "*":
        locality.change("no sub-zones in Switchgear")


def _by_name(spec: SourceNode, port: tuple[str, SourcedValue | None]) -> list[Tree]:
    """The host itself as the only engine: what DNS gives for it is looked up while serving."""
    resolution = spec.get("resolution")
    if resolution is None or resolution.text_value not in {"DNS", "DNS_ROUND_ROBIN"} or port[1] is None:
        return []
    hosts = spec.get("hosts")
    names = [one for one in (hosts.items() if hosts is not None else ()) if text(one) is not None]
    return [{"address": SourcedValue(value=str(one.value), node=one), "port": port[1]} for one in names]


def _selected(spec: SourceNode, entry: ServiceEntry, pool: PolicyDraft, port: SourcedValue | None) -> None:
    resolution = spec.get("resolution")
    if resolution is not None:
        if resolution.text_value in {"STATIC", "DNS", "DNS_ROUND_ROBIN"}:
            resolution.take()
        else:
            resolution.refuse("needs an address or a host name")
    selector = spec.get("workloadSelector")
    if selector is None:
        return
    labels = texts(selector.get("labels"))
    if entry.workloads:
        selector.change("only its WorkloadEntries were imported; in Istio it selects pods too")
    elif labels:
        pool.spec["kubernetes"] = {
            "selector": {key: SourcedValue(value=one) for key, one in labels.items()},
            "port": port or DEFAULT_PORT,
        }
