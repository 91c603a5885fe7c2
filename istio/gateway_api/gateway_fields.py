"""The fate of every field of every document, with its value and who set it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from istio.export.istio_fields import field_fidelities as fields_of_documents
from istio.fidelity import FieldFidelity
from istio.gateway_api import gateway_policy_judges, gateway_pool_judges, gateway_route_judges
from istio.gateway_api.backends import PoolBackends
from istio.gateway_api.gateway_field_context import GatewayFieldContext, Judge
from istio.gateway_api.gateway_objects import GatewayTarget
from policies.fidelity import lost
from policies.model import PolicySet
from policies.schema import leaf_targets

JUDGES: Final[Mapping[str, Mapping[str, Judge]]] = MappingProxyType(
    {
        "EnginePool": gateway_pool_judges.JUDGES,
        "ModelRoute": gateway_route_judges.JUDGES,
        "ResiliencePolicy": gateway_policy_judges.JUDGES,
    }
)
"""Functions that decide outcomes, by kind and path."""
_FOR: Final = " for "
_OF_THE_DOCUMENT: Final = ("apiVersion", "kind", "metadata.")
_NAMED_AS_ITS_ROUTE: Final = frozenset({"HTTPRoute", "BackendTrafficPolicy"})


def gateway_field_fidelities(
    policies: PolicySet, site: GatewayTarget, left_out: Mapping[str, str], backends: Mapping[str, PoolBackends]
) -> tuple[FieldFidelity, ...]:
    """The fate of every field; ``left_out``: omitted routes and the reasons."""
    return tuple(_fates(policies, site, left_out, backends))


def _fates(
    policies: PolicySet, site: GatewayTarget, left_out: Mapping[str, str], backends: Mapping[str, PoolBackends]
) -> Iterator[FieldFidelity]:
    # Fields, values and origins are the same for every export.
    for one in fields_of_documents(policies, site.istio_target):
        kind, _, rest = one.document.partition("/")
        name = rest.rpartition(_FOR)[2]
        seen = GatewayFieldContext(policies=policies, site=site, backends=backends, left_out=left_out, name=name)
        outcome = leaf_targets(kind)[one.path].gateway_api
        judge = JUDGES[kind].get(one.path) if kind != "ResiliencePolicy" or _FOR in rest else None
        outcome = (judge(seen) if judge is not None else None) or outcome
        if kind == "ResiliencePolicy" and site.plain:
            outcome = gateway_policy_judges.without_envoy_gateway(
                one.path, outcome, experimental=site.experimental
            )
        if kind == "ModelRoute" and name in left_out and not one.path.startswith(_OF_THE_DOCUMENT):
            outcome = lost(f"route omitted: {left_out[name]}")
        target = outcome.target
        if kind == "ModelRoute" and target in _NAMED_AS_ITS_ROUTE:
            target = f"{target}/{name}"
        yield replace(one, fate=outcome.fidelity, how=outcome.how, target=target)
