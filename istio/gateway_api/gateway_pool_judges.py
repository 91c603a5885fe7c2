"""EnginePool fields whose outcome in the Gateway API depends on the value or on other fields."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from istio.export.destination_tls import shared_server_name
from istio.gateway_api.backend_tls import MOST_NAMES, BackendTlsNames, backend_tls_names
from istio.gateway_api.backends import PoolBackends
from istio.gateway_api.gateway_field_context import GatewayFieldContext, Judge
from policies.fidelity import FieldOutcome, approximated, kept, lost
from policies.schema import leaf_targets


def _stands(of: PoolBackends, kind: str) -> bool:
    return any(one.kind == kind for one in of.of)


def _endpoint(seen: GatewayFieldContext) -> FieldOutcome | None:
    """Engines are in a Backend, in EndpointSlices, or left out because their names do not fit."""
    found = seen.backends[seen.name]
    if found.left_out:
        return lost(f"omitted, because their names cannot be expressed: {', '.join(found.left_out[:3])}")
    return kept("endpoints", "Backend") if _stands(found, "Backend") else None


def _zone(seen: GatewayFieldContext) -> FieldOutcome | None:
    if not any(one.zone for one in seen.policies.pools[seen.name].spec.endpoints):
        return kept("no engine has a zone or region", "")
    if _stands(seen.backends[seen.name], "Backend"):
        return lost("endpoints with host names have no zone")
    return None


def _none_said(name: str) -> Judge:
    """Lost only where an engine says something."""
    return lambda seen: (
        None
        if any(getattr(one, name) for one in seen.policies.pools[seen.name].spec.endpoints)
        else kept("not set for any engine", "")
    )


def _alike(seen: GatewayFieldContext) -> FieldOutcome | None:
    weights = {one.weight for one in seen.policies.pools[seen.name].spec.endpoints}
    return kept("all engines have the same value", "") if len(weights) == 1 else None


def _asked(seen: GatewayFieldContext) -> FieldOutcome | None:
    """Whether every engine is asked for the name that Switchgear asks it for."""
    pool = seen.policies.pools[seen.name]
    wrong = [one.hostname for one in _names(seen) if one.hostname != shared_server_name(pool).lower()]
    if not wrong:
        return None
    return lost(f"SNI {wrong[0]} is used for every engine, because one name is required; set serverName")


def _proved(seen: GatewayFieldContext) -> FieldOutcome | None:
    """Names with * are compared literally, and some names do not fit."""
    left_out = [name for one in _names(seen) for name in one.left_out]
    if left_out:
        return lost(f"engines without one of the first {MOST_NAMES} valid names are refused: {left_out[0]}")
    if any("*" in name for one in _names(seen) for name in one.alternatives):
        return lost("names are compared literally: a name with * matches only the same name with *")
    return None


def _names(seen: GatewayFieldContext) -> Iterator[BackendTlsNames]:
    pool = seen.policies.pools[seen.name]
    if pool.spec.tls is not None:
        yield from (backend_tls_names(pool, pool.spec.tls, one) for one in seen.backends[seen.name].of)


def _port(seen: GatewayFieldContext) -> FieldOutcome | None:
    found = seen.policies.pools[seen.name].spec.kubernetes
    if found is not None and not isinstance(found.port, int):
        return lost("a backend needs a port number; 8000 is used")
    if found is not None and found.service is not None:
        return approximated("assumed to be the Service's port; set that port if it differs", "HTTPRoute")
    return None


def _sums(seen: GatewayFieldContext) -> FieldOutcome | None:
    if seen.site.plain:
        return lost("the Gateway API has no admission limit; Envoy Gateway's policies have one")
    pool = seen.policies.pools[seen.name]
    if pool.spec.kubernetes is not None and seen.policies.effective[seen.name].limits.max_concurrent is None:
        return lost("number of engines in the cluster unknown; set limits.maxConcurrent for an admission limit")
    return None


def _probing(seen: GatewayFieldContext) -> FieldOutcome | None:
    on = seen.policies.pools[seen.name].spec.probe.enabled
    return None if on else kept("probes are off", "")


JUDGES: Final[Mapping[str, Judge]] = MappingProxyType(
    {
        "spec.endpoints[].address": _endpoint,
        "spec.endpoints[].port": _endpoint,
        "spec.endpoints[].zone": _zone,
        "spec.endpoints[].weight": _alike,
        **{
            f"spec.endpoints[].{path}": _none_said(name)
            for path, name in (
                ("region", "region"),
                ("revision", "revision"),
                ("agentPort", "agent_port"),
                ("tensorParallelGroup", "tensor_parallel_group"),
                ("labels", "labels"),
            )
        },
        "spec.kubernetes.port": _port,
        "spec.slotsPerEngine": _sums,
        "spec.serviceTime": _sums,
        "spec.tls.serverName": _asked,
        "spec.tls.subjectAltNames": _proved,
        **{path: _probing for path in leaf_targets("EnginePool") if path.startswith("spec.probe.")},
    }
)
