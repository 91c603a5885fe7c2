"""Pools as backends of HTTPRoutes.

Pods with certain labels are an InferencePool, which is asked through an endpoint picker. Pods behind a Service
are that Service. Engines given by hand are a Service without a selector and its EndpointSlices, which know zones;
those that are host names, and few that say no zone, are Envoy Gateway's Backend, which knows neither zones nor
more than 64 engines.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, TypeVar

from istio.export.istio_objects import Object, istio_object, object_name
from istio.gateway_api.gateway_objects import ENVOY_GATEWAY, INFERENCE, ROUTES, GatewayTarget
from policies.model import PolicySet
from policies.pool import Endpoint, EnginePool

MOST_IN_A_BACKEND: Final = 64
UNKNOWN_PORT: Final = 8000
"""vLLM's own, where only the name of a port is known."""

_MOST_IN_A_SLICE: Final = 100
_SERVICE_PORT: Final = 8000
_PORT_NAME: Final = "http"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayBackend:
    """What a route names for a pool or a part of it; ``slots`` say how large a part."""

    group: str
    kind: str
    name: str
    namespace: str
    port: int | None
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBackends:
    """What stands for a pool: backends, the objects they are, and the engines that nothing stands for."""

    of: tuple[GatewayBackend, ...]
    objects: tuple[Object, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """A pool and what its objects are made in."""

    name: str
    pool: EnginePool
    policies: PolicySet
    site: GatewayTarget

    @property
    def namespace(self) -> str:
        return self.site.of(self.pool.metadata)

    def made(self, kind: str, name: str, spec: Object, version: str) -> Object:
        """An object that stands for the pool or a part of it."""
        of = [f"EnginePool/{self.name}"]
        return istio_object(kind, name, self.namespace, spec, policies=self.policies, of=of, version=version)

    def slots(self, engines: Sequence[Endpoint]) -> int:
        return sum(one.slots or self.pool.spec.slots_per_engine for one in engines)


def backends(name: str, policies: PolicySet, site: GatewayTarget) -> PoolBackends:
    """The backends of a pool."""
    around = _Pool(name=name, pool=policies.pools[name], policies=policies, site=site)
    found, by_hand, namespace = around.pool.spec.kubernetes, around.pool.spec.endpoints, around.namespace
    parts: list[PoolBackends] = []
    if found is not None:
        port = found.port if isinstance(found.port, int) else UNKNOWN_PORT
        slots = around.pool.spec.slots_per_engine
        if found.service is not None:
            service = GatewayBackend(
                group="", kind="Service", name=found.service, namespace=namespace, port=port, slots=slots
            )
            parts.append(PoolBackends(of=(service,)))
        else:
            inference = GatewayBackend(
                group=INFERENCE, kind="InferencePool", name=name, namespace=namespace, port=None, slots=slots
            )
            parts.append(PoolBackends(of=(inference,), objects=(_inference_pool(around, port),)))
    if by_hand:
        parts.append(_by_hand(around))
    return PoolBackends(
        of=tuple(one for part in parts for one in part.of),
        objects=tuple(one for part in parts for one in part.objects),
        left_out=tuple(one for part in parts for one in part.left_out),
    )


def _inference_pool(around: _Pool, port: int) -> Object:
    found, site = around.pool.spec.kubernetes, around.site
    spec: Object = {
        "selector": {"matchLabels": dict(found.selector if found is not None else {})},
        "targetPorts": [{"number": port}],
        "endpointPickerRef": {
            "kind": "Service",
            "name": object_name(site.picker.replace("{pool}", around.name)),
            "port": {"number": site.picker_port},
            "failureMode": "FailOpen",
        },
    }
    return around.made("InferencePool", around.name, spec, f"{INFERENCE}/v1")


def _by_hand(around: _Pool) -> PoolBackends:
    engines, name, namespace = around.pool.spec.endpoints, around.name, around.namespace
    addressed = [one for one in engines if _address(one.address)]
    names = [one for one in engines if not around.site.plain and _host(one.address)]
    objects: list[Object] = []
    of: list[GatewayBackend] = []
    zoned = any(one.zone for one in addressed)
    if addressed and (zoned or around.site.plain or len(addressed) > MOST_IN_A_BACKEND):
        service, slots = _service_name(name), around.slots(addressed)
        objects += _slices(around, service, addressed)
        of.append(
            GatewayBackend(
                group="", kind="Service", name=service, namespace=namespace, port=_SERVICE_PORT, slots=slots
            )
        )
    else:
        _few(around, "ip", addressed, objects, of)
    _few(around, "fqdn", names, objects, of)
    left_out = [one.name for one in engines if not _address(one.address) and one not in names]
    return PoolBackends(of=tuple(of), objects=tuple(objects), left_out=tuple(left_out))


def _few(
    around: _Pool, sort: str, engines: Sequence[Endpoint], objects: list[Object], of: list[GatewayBackend]
) -> None:
    """Add the engines as Backends, whose endpoints are all of one sort."""
    for number, part in _parts(engines, MOST_IN_A_BACKEND):
        name = object_name(around.name, sort, *([str(number)] if number else []))
        spec: Object = {"endpoints": [_endpoint(sort, one) for one in part]}
        objects.append(around.made("Backend", name, spec, f"{ENVOY_GATEWAY}/v1alpha1"))
        of.append(
            GatewayBackend(
                group=ENVOY_GATEWAY,
                kind="Backend",
                name=name,
                namespace=around.namespace,
                port=None,
                slots=around.slots(part),
            )
        )


def _endpoint(sort: str, one: Endpoint) -> Object:
    if sort == "fqdn":
        return {"fqdn": {"hostname": _host(one.address), "port": one.port}}
    return {"ip": {"address": _address(one.address), "port": one.port}}


def _service_name(name: str) -> str:
    """A Service's name begins with a letter, as a pool's need not."""
    return object_name("pool", name) if name[0].isdigit() else name


def _slices(around: _Pool, service: str, engines: Sequence[Endpoint]) -> Iterator[Object]:
    """A Service without a selector, and the EndpointSlices that say who is behind it."""
    spec: Object = {
        "clusterIP": "None",
        "ports": [{"name": _PORT_NAME, "port": _SERVICE_PORT, "protocol": "TCP", "appProtocol": "http"}],
    }
    yield around.made("Service", service, spec, "v1")
    groups: dict[tuple[str, int], list[Endpoint]] = {}
    for one in engines:
        family = "IPv6" if ":" in one.address else "IPv4"
        groups.setdefault((family, one.port), []).append(one)
    for (family, port), group in sorted(groups.items()):
        for number, part in _parts(group, _MOST_IN_A_SLICE):
            called = object_name(around.name, family.lower(), str(port), *([str(number)] if number else []))
            bare = around.made("EndpointSlice", called, {}, "discovery.k8s.io/v1")
            del bare["spec"]
            metadata = bare["metadata"]
            if isinstance(metadata, dict):
                metadata["labels"] = {**metadata["labels"], "kubernetes.io/service-name": service}
            yield {
                **bare,
                "addressType": family,
                "endpoints": [_slice_endpoint(one) for one in part],
                "ports": [{"name": _PORT_NAME, "port": port, "protocol": "TCP", "appProtocol": "http"}],
            }


def _slice_endpoint(one: Endpoint) -> Object:
    endpoint: Object = {"addresses": [one.address], "conditions": {"ready": True}}
    return {**endpoint, "zone": one.zone} if one.zone else endpoint


def _address(address: str) -> str:
    """The IP address in the long form that Backend's pattern takes; empty where it is none."""
    try:
        found = ip_address(address)
    except ValueError:
        return ""
    return "" if "%" in address else found.exploded


def _host(address: str) -> str:
    """The host name as Kubernetes writes them; empty where it cannot be."""
    plain = address.lower().rstrip(".")
    return "" if "_" in plain or "%" in plain or _address(address) else plain


_T = TypeVar("_T")


def _parts(items: Sequence[_T], most: int) -> Iterator[tuple[int, Sequence[_T]]]:
    """The items in parts of at most ``most``, each with its number."""
    yield from ((number, items[at : at + most]) for number, at in enumerate(range(0, len(items), most)))


def reference_grant(
    backend: GatewayBackend, route_namespace: str, policies: PolicySet, of: Sequence[str]
) -> Object:
    """Lets routes of another namespace lead to a backend."""
    spec: Object = {
        "from": [{"group": ROUTES, "kind": "HTTPRoute", "namespace": route_namespace}],
        "to": [{"group": backend.group, "kind": backend.kind, "name": backend.name}],
    }
    name = object_name(backend.kind.lower(), backend.name, "from", route_namespace)
    return istio_object(
        "ReferenceGrant", name, backend.namespace, spec, policies=policies, of=of, version=f"{ROUTES}/v1beta1"
    )
