"""EnginePool fields whose outcome in Istio depends on the value or on other fields."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from istio.export.destination_tls import shared_server_name
from istio.export.field_context import FieldContext, Judge
from policies.fidelity import FieldOutcome, approximated, kept, lost
from policies.schema import leaf_targets

_LONGEST_LABEL: Final = 63


def _zone(seen: FieldContext) -> FieldOutcome | None:
    if len(seen.value) > _LONGEST_LABEL:
        return lost("Istio compares localities by labels, which have at most 63 characters")
    return None


def _port(seen: FieldContext) -> FieldOutcome | None:
    found = seen.policies.pools[seen.name].spec.kubernetes
    if found is None or isinstance(found.port, int):
        return None
    if found.service is not None and seen.gateway:
        return approximated("Istio accepts no port name: the Service may have only this port", "VirtualService")
    if found.service is not None:
        # pilot/pkg/networking/core/httproute.go: routes of a port see only Services that have it.
        return lost(
            "sidecars send to the route's own port, and answer 503 if the Service has another: write a number"
        )
    return lost("a ServiceEntry needs a port number; 8000 is used")


def _weight(seen: FieldContext) -> FieldOutcome | None:
    """With engines selected by a Service, an entry would need the Service's selector."""
    found = seen.policies.pools[seen.name].spec.kubernetes
    if found is not None and found.service is not None:
        return lost("listed engines cannot join a Service; use a selector")
    return None


def _sums(seen: FieldContext) -> FieldOutcome | None:
    pool = seen.policies.pools[seen.name]
    if pool.spec.kubernetes is not None and seen.policies.effective[seen.name].limits.max_concurrent is None:
        return lost("number of engines in the cluster unknown; set limits.maxConcurrent for an admission limit")
    return None


def _probing(seen: FieldContext) -> FieldOutcome | None:
    if seen.policies.pools[seen.name].spec.probe.enabled:
        return None
    return kept("probes are off", "")


def _asked(seen: FieldContext) -> FieldOutcome | None:
    """Istio cannot express one name per engine."""
    if seen.value or shared_server_name(seen.policies.pools[seen.name]):
        return None
    return approximated(
        "Istio sends the callers' host as SNI and accepts any of tls.subjectAltNames",
        "DestinationRule",
    )


def _patterns(seen: FieldContext) -> FieldOutcome | None:
    if not any("*" in name for name in seen.value):
        return None
    return lost("Istio compares names literally: a name with * matches only the same name with *")


def _both(first: Judge, second: Judge) -> Judge:
    return lambda seen: first(seen) or second(seen)


JUDGES: Final[Mapping[str, Judge]] = MappingProxyType(
    {
        **{
            f"spec.endpoints[].{name}": _weight
            for name in ("address", "port", "name", "slots", "weight", "labels")
        },
        "spec.endpoints[].zone": _both(_weight, _zone),
        "spec.endpoints[].region": _both(_weight, _zone),
        "spec.kubernetes.port": _port,
        "spec.slotsPerEngine": _sums,
        "spec.serviceTime": _sums,
        "spec.tls.serverName": _asked,
        "spec.tls.subjectAltNames": _patterns,
        **{path: _probing for path in leaf_targets("EnginePool") if path.startswith("spec.probe.")},
    }
)
