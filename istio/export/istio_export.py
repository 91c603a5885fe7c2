"""Everything that is exported to Istio, in the order in which it should be applied.

Services come before what refers to them, and patches last: a rule for a host that is not there yet is ignored, and
a patch without its cluster does nothing.

The export does not see the live fleet. Ceilings assume healthy engines and are computed once for
``IstioTarget.proxies``.
"""

from collections.abc import Mapping
from typing import Final

from istio.export.destination_rules import destination_rule
from istio.export.envoy_filters import pool_filter, route_filter
from istio.export.istio_fields import field_fidelities
from istio.export.istio_objects import IstioTarget, Object
from istio.export.mesh_telemetry import telemetries
from istio.export.service_entries import destination, services
from istio.export.virtual_services import NO_FAULTS, PoolDestinations, port_service, route_ports, virtual_services
from istio.fidelity import ExportResult
from policies.model import PolicySet
from policies.route import PriorityClass
from xds_server.decide.admission.ceiling import classes_by_pool
from xds_server.decide.decide import decide
from xds_server.decide.decision_memory import NO_MEMORY
from xds_server.decide.decisions import Ceiling
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.model.fleet import Fleet, declared
from xds_server.model.view import GATEWAY

ALWAYS_LOST: Final = (
    "Always lost, because Istio has no view of the whole fleet:",
    "- Verdicts: no probes ask for a token. `switchgear istio run` restores them: ejected engines "
    "leave Istio's endpoints.",
    "- Admission limits are fixed and do not follow engines. Export again when the fleet changes.",
    "- Retry budgets and admission limits apply per proxy. --proxies divides them evenly, once.",
    "- Degradation levels: no pressure is measured, so no load is shed before engines are full.",
    "- `why`, the ledger and shadow mode: Istio only has metrics and logs.",
)
"""What no export can keep, in sentences for the report."""


def export_to_istio(
    policies: PolicySet, place: IstioTarget, faults: Mapping[str, Object] = NO_FAULTS
) -> ExportResult:
    """The policies as Istio's objects, and the fate of every field. ``faults`` are by the name of the route."""
    fleet = declared(policies)
    limits = ceilings(policies, fleet, place)
    classes = classes_by_pool(policies)
    both = frozenset(
        name for name, found in classes.items() if len(found) == len(PriorityClass) and name in limits
    )
    destinations = {name: destination(pool, place) for name, pool in policies.pools.items()}
    ports = tuple(
        route_ports(policies, place, PoolDestinations(destinations=destinations, both_classes=both), faults)
    )
    objects = [*services(policies, fleet, place)]
    if not place.gateway and not place.host:
        objects += (port_service(entry, policies) for entry in ports)
    for name, pool in policies.pools.items():
        objects.append(
            destination_rule(
                pool,
                policies.effective[name],
                destinations[name],
                ceiling=limits.get(name),
                policies=policies,
                place=place,
            )
        )
    objects += virtual_services(ports, policies, place)
    for name in policies.pools:
        batch = limits[name] if name in both else None
        objects.append(
            pool_filter(policies.effective[name], destinations[name], place, batch=batch, policies=policies)
        )
    objects += (found for entry in ports if (found := route_filter(entry, place, policies)) is not None)
    objects += telemetries(ports, policies, place)
    return ExportResult(objects=tuple(objects), fields=field_fidelities(policies, place))


def ceilings(policies: PolicySet, fleet: Fleet, place: IstioTarget) -> Mapping[str, Ceiling]:
    """The ceiling of one proxy for each pool while all engines are healthy.

    Pools with engines from Kubernetes have none, unless the policy sets a number.
    """
    decided, _ = decide(
        policies, fleet, NO_MEMORY, proxies=ConnectedProxies(by_role={GATEWAY: place.proxies}), now_s=0.0
    )
    return {
        name: ceiling
        for name, pool in policies.pools.items()
        if (ceiling := decided.ceilings.get((name, GATEWAY))) is not None
        and (pool.spec.kubernetes is None or policies.effective[name].limits.max_concurrent is not None)
    }
