"""The fate of every field of every document, with its value and who set it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from istio.export.fates import fates as fields_of_documents
from istio.export.outcome import Table, lost
from istio.gateway_api import fate_of_policy, fate_of_pool, fate_of_route
from istio.gateway_api.backends import Backends
from istio.gateway_api.seen import Judge, Seen
from istio.gateway_api.site import Site
from istio.loss import FieldFate
from policies.model import PolicySet

TABLES: Final[Mapping[str, Table]] = MappingProxyType(
    {
        "EnginePool": fate_of_pool.TABLE,
        "ModelRoute": fate_of_route.TABLE,
        "ResiliencePolicy": fate_of_policy.TABLE,
    }
)
_JUDGES: Final[Mapping[str, Mapping[str, Judge]]] = MappingProxyType(
    {
        "EnginePool": fate_of_pool.JUDGES,
        "ModelRoute": fate_of_route.JUDGES,
        "ResiliencePolicy": fate_of_policy.JUDGES,
    }
)
_UNKNOWN: Final = lost("nothing that is exported stands for it")
_FOR: Final = " for "
_OF_THE_DOCUMENT: Final = ("apiVersion", "kind", "metadata.")
_NAMED_AS_ITS_ROUTE: Final = frozenset({"HTTPRoute", "BackendTrafficPolicy"})


def fates(
    policies: PolicySet, site: Site, left_out: Mapping[str, str], backends: Mapping[str, Backends]
) -> tuple[FieldFate, ...]:
    """The fate of every field; ``left_out`` are routes that could not be said, and why."""
    return tuple(_fates(policies, site, left_out, backends))


def _fates(
    policies: PolicySet, site: Site, left_out: Mapping[str, str], backends: Mapping[str, Backends]
) -> Iterator[FieldFate]:
    # Which fields there are, what they hold and who said so is the same for every export.
    for one in fields_of_documents(policies, site.place):
        kind, _, rest = one.document.partition("/")
        name = rest.rpartition(_FOR)[2]
        seen = Seen(policies=policies, site=site, backends=backends, left_out=left_out, name=name)
        outcome = TABLES[kind].get(one.path, _UNKNOWN)
        judge = _JUDGES[kind].get(one.path) if kind != "ResiliencePolicy" or _FOR in rest else None
        outcome = (judge(seen) if judge is not None else None) or outcome
        if kind == "ResiliencePolicy" and site.plain:
            outcome = fate_of_policy.in_plain(one.path, outcome)
        if kind == "ModelRoute" and name in left_out and not one.path.startswith(_OF_THE_DOCUMENT):
            outcome = lost(f"the route is left out: {left_out[name]}")
        target = outcome.target
        if kind == "ModelRoute" and target in _NAMED_AS_ITS_ROUTE:
            target = f"{target}/{name}"
        yield replace(one, fate=outcome.fate, how=outcome.how, target=target)
