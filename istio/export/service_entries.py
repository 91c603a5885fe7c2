"""Pools as services that Istio knows: engines outside of the cluster as WorkloadEntries behind a ServiceEntry.

Labels and names are those of ``istio.live``, so that it takes over the very same entries: one that does not serve
leaves the service by its label. A pool whose engines a Service of the cluster selects is that Service; one whose
engines are found by labels is a ServiceEntry that selects those pods.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from types import MappingProxyType
from typing import Final

from istio.export.istio_objects import IstioTarget, Object, istio_object, object_name, with_annotation
from istio.live.desired_state import ENGINE_ANNOTATION, POOL_LABEL, SERVING_LABEL, entry_name
from policies.model import PolicySet
from policies.pool import EnginePool
from xds_server.model.fleet import Engine, EngineId, Fleet
from xds_server.translate.endpoints import engine_weights

PORT_NAME: Final = "http"
SERVING_SUBSET: Final = "serving"
REGIONS_LABEL: Final = "switchgear.dev/"
UNKNOWN_PORT: Final = 8000
"""vLLM's own, for a service whose engines' port is known by name only."""

ZONE_LABEL: Final = "topology.kubernetes.io/zone"
REGION_LABEL: Final = "topology.kubernetes.io/region"

_NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})
_LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_LABEL_NAME: Final = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where requests for a pool go.

    ``port`` is None where only its name is known; a gateway then needs a Service with a single port, and sidecars
    one with the port of the route. ``selects`` are the labels of its endpoints; none where the cluster has a
    Service of its own for it. ``subset`` is the one that requests go to unless another is meant.
    """

    pool: str
    namespace: str
    host: str
    port: int | None
    selects: Mapping[str, str]
    subset: str = ""

    def clause(self, subset: str = "") -> Object:
        """As routes of a VirtualService name it."""
        subset = subset or self.subset
        port: Object = {} if self.port is None else {"port": {"number": self.port}}
        return {"host": self.host, **port, **({"subset": subset} if subset else {})}


def destination(pool: EnginePool, place: IstioTarget) -> Destination:
    """The service that stands for the pool."""
    name, namespace, found = pool.metadata.name, place.of(pool.metadata), pool.spec.kubernetes
    if found is not None and found.service is not None:
        return Destination(
            pool=name,
            namespace=namespace,
            host=place.service(found.service, namespace),
            port=found.port if isinstance(found.port, int) else None,
            selects=_NO_LABELS,
            # A Service uses its own selector, so a subset follows the engines' verdicts.
            subset=SERVING_SUBSET if place.live else "",
        )
    selects = {POOL_LABEL: name, SERVING_LABEL: "true"} if found is None else dict(found.selector)
    if place.live:
        selects[SERVING_LABEL] = "true"
    return Destination(
        pool=name,
        namespace=namespace,
        host=place.service(name, namespace),
        port=_service_port(pool),
        selects=MappingProxyType(selects),
    )


def _service_port(pool: EnginePool) -> int:
    """The engines' port; the lowest of several: engines with another port carry it themselves."""
    found = pool.spec.kubernetes
    if found is not None and isinstance(found.port, int):
        return found.port
    return min((one.port for one in pool.spec.endpoints), default=UNKNOWN_PORT)


def services(policies: PolicySet, fleet: Fleet, place: IstioTarget) -> Iterator[Object]:
    """The ServiceEntry of each pool without a Service, each followed by the WorkloadEntries of its engines."""
    for name, pool in policies.pools.items():
        to = destination(pool, place)
        if not to.selects:
            continue
        engines = fleet.pools.get(name, ())
        spec: Object = {
            "hosts": [to.host],
            # Only services inside of the mesh may select their endpoints.
            "location": "MESH_INTERNAL",
            "resolution": "STATIC" if all(is_ip(one.address) for one in engines) else "DNS",
            "ports": [{"number": to.port, "name": PORT_NAME, "protocol": "HTTP"}],
            "workloadSelector": {"labels": dict(to.selects)},
        }
        yield istio_object("ServiceEntry", name, to.namespace, spec, policies=policies, of=[f"EnginePool/{name}"])
        weights, groups = _weights(engines), region_groups(policies, name)
        for engine in engines:
            belongs = {subset: "true" for subset, regions in groups.items() if engine.region in regions}
            yield _entry(engine, weights.get(engine.id, 0), to, belongs, policies)


def region_groups(policies: PolicySet, pool: str) -> Mapping[str, tuple[str, ...]]:
    """The sets of regions that routes to this pool are bound to, by the label of engines that stand in one."""
    groups: dict[str, tuple[str, ...]] = {}
    for route in policies.routes.values():
        regions = tuple(sorted(set(route.spec.allowed_regions)))
        if regions and any(share.pool == pool for share in route.spec.pools):
            groups[f"{REGIONS_LABEL}{group_name(regions)}"] = regions
    return dict(sorted(groups.items()))


def group_name(regions: tuple[str, ...]) -> str:
    """Name of the subset of engines that stand in one of these regions."""
    return object_name("regions", *sorted(set(regions)))


def _entry(
    engine: Engine, weight: int, to: Destination, belongs: Mapping[str, str], policies: PolicySet
) -> Object:
    labels = {name: value for name, value in sorted(engine.labels.items()) if _is_label(name, value)}
    labels |= {**to.selects, **belongs, POOL_LABEL: to.pool, SERVING_LABEL: "true"}
    # Istio compares these with the caller's, also where no region is known and there is no locality to speak of.
    labels |= {
        name: value
        for name, value in ((REGION_LABEL, engine.region), (ZONE_LABEL, engine.zone))
        if value and _is_label(name, value)
    }
    spec: Object = {"address": engine.address, "ports": {PORT_NAME: engine.port}, "labels": labels}
    if engine.region:
        spec["locality"] = f"{engine.region}/{engine.zone}" if engine.zone else engine.region
    if weight:
        spec["weight"] = weight
    entry = istio_object(
        "WorkloadEntry",
        entry_name(engine.id),
        to.namespace,
        spec,
        policies=policies,
        of=[f"EnginePool/{to.pool}"],
    )
    return with_annotation(entry, ENGINE_ANNOTATION, f"{to.pool}/{engine.id.engine}")


def _weights(engines: tuple[Engine, ...]) -> Mapping[EngineId, int]:
    """Weights within each zone as Switchgear's own endpoints have them; none where all are alike."""
    zones: dict[tuple[str, str], list[Engine]] = {}
    for engine in engines:
        zones.setdefault((engine.region, engine.zone), []).append(engine)
    weights: dict[EngineId, int] = {}
    for there in zones.values():
        weights |= zip((one.id for one in there), engine_weights(there), strict=True)
    return weights if len(set(weights.values())) > 1 else {}


def _is_label(name: str, value: str) -> bool:
    """Whether Kubernetes takes it as a label."""
    return _LABEL_NAME.fullmatch(name) is not None and _LABEL_VALUE.fullmatch(value) is not None


def is_ip(address: str) -> bool:
    """Whether it is an IP address, and no host name."""
    try:
        ip_address(address)
    except ValueError:
        return False
    return True
