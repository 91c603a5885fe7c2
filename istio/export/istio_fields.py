"""The fate of every field of every document, with its value and who set it.

Items of a list are taken together: a pool of a thousand engines is one line for each field, not a thousand.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from istio.export import policy_judges, pool_judges, route_judges
from istio.export.field_context import FieldContext, Judge
from istio.export.istio_objects import IstioTarget, object_name
from istio.export.virtual_services import service_name
from istio.fidelity import FieldFidelity
from istio.loss_report import BUILT_IN
from policies.document import Spec
from policies.fidelity import Fidelity
from policies.merge import setter
from policies.model import Document, PolicySet
from policies.origin import Origin
from policies.quantity import format_duration
from policies.resilience import DEFAULT
from policies.schema import FieldDoc, leaf_targets, leaves

JUDGES: Final[Mapping[str, Mapping[str, Judge]]] = MappingProxyType(
    {
        "EnginePool": pool_judges.JUDGES,
        "ModelRoute": route_judges.JUDGES,
        "ResiliencePolicy": policy_judges.JUDGES,
    }
)
"""Functions that decide outcomes, by kind and path."""
_OF_THE_DOCUMENT: Final = ("apiVersion", "kind", "metadata.", "spec.pools")
_MAY_BE_ABSENT: Final = (
    "spec.endpoints[]",
    "spec.kubernetes",
    "spec.listener.accessLogCollector",
    "spec.listener.deadline",
    "spec.listener.extAuth",
    "spec.listener.jwt",
    "spec.listener.tenants",
    "spec.listener.tls",
    "spec.match.headers[]",
    "spec.tls",
)
_MOST_TRIED: Final = 100
_SHOWN: Final = 3
"""Different values of a list's items that are shown."""


def field_fidelities(policies: PolicySet, place: IstioTarget) -> tuple[FieldFidelity, ...]:
    """The fate of every field of every document; of policies what is in force, for each pool."""
    return (
        *(one for name, pool in policies.pools.items() for one in _of_document(pool, name, policies, place)),
        *(one for name, route in policies.routes.items() for one in _of_document(route, name, policies, place)),
        *(
            one
            for name, policy in policies.policies.items()
            for one in _of_document(policy, name, policies, place, only=_OF_THE_DOCUMENT)
        ),
        *(one for name in policies.pools for one in _in_force(name, policies, place)),
    )


def _of_document(
    document: Document, name: str, policies: PolicySet, place: IstioTarget, only: tuple[str, ...] = ("",)
) -> Iterator[FieldFidelity]:
    kind = document.kind
    for doc in leaves(kind):
        values = tuple(_values(document, doc.path.split(".")))
        if doc.path.startswith(only) and (values or not doc.path.startswith(_MAY_BE_ABSENT)):
            about = _Subject(
                kind=kind,
                name=name,
                document=f"{kind}/{name}",
                objects=_objects(kind, name, policies, place),
                gateway=bool(place.gateway),
            )
            yield _fate(about, doc, values, _place(document, policies, about.document, doc.path), policies)


def _in_force(pool: str, policies: PolicySet, place: IstioTarget) -> Iterator[FieldFidelity]:
    """Of the policy that is in force for a pool, whichever documents it is laid together of."""
    stack = policies.layers.get(pool, ())
    spec = policies.effective[pool]
    about = _Subject(
        kind="ResiliencePolicy",
        name=pool,
        document=f"ResiliencePolicy/{stack[-1] if stack else DEFAULT} for {pool}",
        objects=_objects("EnginePool", pool, policies, place),
        gateway=bool(place.gateway),
    )
    for doc in leaves("ResiliencePolicy"):
        if doc.path.startswith(_OF_THE_DOCUMENT):
            continue
        by = setter(policies, pool, doc.path)
        said = policies.origins.get(f"ResiliencePolicy/{by}.{doc.path}") if by is not None else None
        yield _fate(about, doc, tuple(_values(spec, doc.path.split(".")[1:])), said, policies)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """Whose field it is: ``name`` is the pool where what is in force for a pool is meant."""

    kind: str
    name: str
    document: str
    objects: Mapping[str, str]
    gateway: bool


def _objects(kind: str, name: str, policies: PolicySet, place: IstioTarget) -> Mapping[str, str]:
    """The name of the object of each kind that carries a document's fields; kinds with several are not there."""
    if kind == "ModelRoute":
        route = policies.routes[name]
        entry = object_name(f"models-{route.spec.listener.port}")
        return {
            "VirtualService": service_name(route.spec.listener.port, place),
            "EnvoyFilter": object_name(entry, place.of(route.metadata)),
            "DestinationRule": route.spec.pools[0].pool,
        }
    if kind == "EnginePool":
        namespace = place.of(policies.pools[name].metadata)
        ports = {
            service_name(route.spec.listener.port, place)
            for route in policies.routes.values()
            if any(share.pool == name for share in route.spec.pools)
        }
        return {
            "DestinationRule": name,
            "ServiceEntry": name,
            "EnvoyFilter": object_name("pool", namespace, name),
            **({"VirtualService": ports.pop()} if len(ports) == 1 else {}),
        }
    return {}


def _fate(
    about: _Subject, doc: FieldDoc, values: Sequence[Any], place: Origin | None, policies: PolicySet
) -> FieldFidelity:
    outcome = leaf_targets(about.kind)[doc.path].istio
    judge = JUDGES[about.kind].get(doc.path)
    if judge is not None and values:
        seen = FieldContext(policies=policies, name=about.name, value=None, gateway=about.gateway)
        judged = (judge(replace(seen, value=one)) or outcome for one in values)
        outcome = max(judged, key=lambda one: list(Fidelity).index(one.fidelity))
    return FieldFidelity(
        document=about.document,
        path=doc.path,
        value=_text(doc, values),
        fate=outcome.fidelity,
        how=outcome.how,
        set_by=f"{place.file}:{place.line}" if place is not None else BUILT_IN,
        target=f"{outcome.target}/{name}" if (name := about.objects.get(outcome.target)) else outcome.target,
    )


def _place(document: Document, policies: PolicySet, key: str, path: str) -> Origin | None:
    """Where the field was first written, in whichever item of a list."""
    before, bracket, after = path.partition("[].")
    if not bracket:
        return policies.origins.get(f"{key}.{path}")
    tried = 0
    for number, item in enumerate(next(_values(document, before.split(".")), ())):
        model: type[Spec] = type(item)
        if _attributes(model)[after.partition(".")[0].removesuffix("[]")] in item.model_fields_set:
            found = policies.origins.get(f"{key}.{before}[{number}].{after.replace('[]', '[0]')}")
            tried += 1
            # Absent names are filled in and then look as if they were set.
            if found is not None or tried > _MOST_TRIED:
                return found
    return None


def _values(value: Any, steps: Sequence[str]) -> Iterator[Any]:
    """All values at these steps; none below a block or a list that is not there."""
    if not steps:
        yield value
        return
    if not isinstance(value, Spec):
        return
    name, items = steps[0].removesuffix("[]"), steps[0].endswith("[]")
    found = getattr(value, _attributes(type(value))[name])
    for one in found if items else (found,):
        yield from _values(one, steps[1:])


@cache
def _attributes(model: type[Spec]) -> Mapping[str, str]:
    return {field.alias or name: name for name, field in model.model_fields.items()}


def _text(doc: FieldDoc, values: Sequence[Any]) -> str:
    """As an operator would write it; of a list's items the first few that differ."""
    shown = list(dict.fromkeys(_one(doc, value) for value in values))
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + more


def _one(doc: FieldDoc, value: Any) -> str:
    if value is None:
        return "-"
    if doc.type == "duration" and isinstance(value, int | float):
        return format_duration(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {text}" for key, text in value.items()) or "-"
    return f"{value:g}" if isinstance(value, float) else str(value) or "-"
