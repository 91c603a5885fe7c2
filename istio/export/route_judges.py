"""ModelRoute fields whose outcome in Istio depends on the value or on other fields."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from istio.export.destination_rules import exported_affinity
from istio.export.field_context import FieldContext, Judge
from istio.export.virtual_service_match import BODY_HEADERS
from policies.fidelity import FieldOutcome, approximated, kept, lost
from policies.listener import RequestFields
from policies.route import ModelChange, PriorityClass
from xds_server.decide.admission.ceiling import classes_by_pool

_HEADER: Final = "headers; conditions Istio lacks are added by a patch of the route"
_BODY: Final = "Istio does not read bodies: the caller or an ext_proc filter must set the header {}"


def _address(seen: FieldContext) -> FieldOutcome | None:
    return None if seen.value in ("0.0.0.0", "::") else lost("Istio sets the listeners of its proxies")


def _body(field: str) -> Judge:
    def judged(seen: FieldContext) -> FieldOutcome | None:
        if seen.policies.routes[seen.name].spec.listener.reads_headers:
            return kept(f"a condition on the same header, {BODY_HEADERS[field]}", "VirtualService")
        return None if seen.value is None else lost(_BODY.format(BODY_HEADERS[field]))

    return judged


def _request_fields(seen: FieldContext) -> FieldOutcome | None:
    if seen.value != RequestFields.HEADERS:
        return None
    return approximated("conditions on the same headers; no 400 for a missing or malformed one", "VirtualService")


def _pool(seen: FieldContext) -> FieldOutcome | None:
    route = seen.policies.routes[seen.name]
    models = {seen.policies.pools[share.pool].spec.model for share in route.spec.pools}
    if len(models) > 1:
        return approximated("the pools have different models, and bodies are not rewritten", "VirtualService")
    return None


def _priority(seen: FieldContext) -> FieldOutcome | None:
    classes = classes_by_pool(seen.policies)
    pools = [share.pool for share in seen.policies.routes[seen.name].spec.pools]
    if all(len(classes[pool]) == 1 for pool in pools):
        return None
    if seen.value == PriorityClass.BATCH:
        return approximated(
            "Envoy's HIGH priority with its own, smaller threshold; shares are fixed",
            "EnvoyFilter",
        )
    return approximated(
        "the cluster's threshold; it cannot use capacity that batch leaves free", "DestinationRule"
    )


def _fallback(seen: FieldContext) -> FieldOutcome | None:
    if not seen.value:
        return None
    return lost("Istio has no fallback between services; callers get 503")


def _model_change(seen: FieldContext) -> FieldOutcome | None:
    if not seen.policies.routes[seen.name].spec.fallbacks or seen.value == ModelChange.NEVER:
        return None
    return lost("no fallback in Istio, so callers never get another model")


def _regions(seen: FieldContext) -> FieldOutcome | None:
    if not seen.value:
        return kept("all regions are allowed", "")
    route = seen.policies.routes[seen.name]
    found = any(seen.policies.pools[share.pool].spec.kubernetes is not None for share in route.spec.pools)
    if found and len(seen.value) > 1:
        return approximated("pods are limited to the first region: a subset accepts one", "DestinationRule")
    if any(len(region) > 63 for region in seen.value):
        return approximated("labels of this length are invalid, so no engine matches", "DestinationRule")
    return None


def _affinity(seen: FieldContext) -> FieldOutcome | None:
    if seen.value is None:
        return kept("not set")
    route = seen.policies.routes[seen.name]
    affinity = route.spec.affinity
    if affinity is None or not affinity.by_header_or_cookie:
        return None
    if all(exported_affinity(seen.policies, share.pool) == affinity for share in route.spec.pools):
        return None
    return lost("Istio has one key per service; routes to the pool with another key, or without one, exclude it")


def _affinity_mode(seen: FieldContext) -> FieldOutcome | None:
    affinity = seen.policies.routes[seen.name].spec.affinity
    if affinity is None or not affinity.is_strict:
        return kept("not set" if affinity is None else "soft, as every consistent hash")
    return lost("a consistent hash instead: some sessions move when engines come and go")


def _move_within(seen: FieldContext) -> FieldOutcome | None:
    affinity = seen.policies.routes[seen.name].spec.affinity
    return None if affinity is not None and affinity.is_strict else kept("no strict sessions")


def _unless_set(seen: FieldContext) -> FieldOutcome | None:
    return None if seen.value else kept("not set")


JUDGES: Final[Mapping[str, Judge]] = MappingProxyType(
    {
        "spec.listener.address": _address,
        "spec.match.headers[].invert": lambda seen: None if seen.value else kept(_HEADER, "VirtualService"),
        "spec.listener.requestFields": _request_fields,
        "spec.match.model": _body("model"),
        "spec.match.stream": _body("stream"),
        "spec.match.tokensAbove": lambda seen: kept("any size is taken") if seen.value is None else None,
        "spec.pools[].pool": _pool,
        "spec.priority": _priority,
        "spec.affinity.mode": _affinity_mode,
        "spec.affinity.moveWithin": _move_within,
        "spec.affinity.tenant": _unless_set,
        "spec.affinity.returnAfter": _unless_set,
        "spec.affinity.header": _affinity,
        "spec.affinity.cookie.name": _affinity,
        "spec.affinity.cookie.ttl": _affinity,
        "spec.affinity.cookie.path": _affinity,
        "spec.fallbacks": _fallback,
        "spec.modelChange": _model_change,
        "spec.allowedRegions": _regions,
    }
)
