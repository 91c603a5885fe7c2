"""CustomResourceDefinitions: what one adds to the API, and the API's word that it did.

Source: Kubernetes, "Extend the Kubernetes API with CustomResourceDefinitions".
"""

from typing import Final

from tests.cluster_double.json_object import Object, at, canonical
from tests.cluster_double.kinds import DEFINITIONS, Kind
from tests.cluster_double.refusal import Cause
from tests.cluster_double.writing import invalid, without_status

_OWNERS: Final = {"ownerReferences": ("uid",), "finalizers": ()}


def defined(definition: Object) -> tuple[Kind, ...]:
    """The kinds that a CustomResourceDefinition adds: one for each version that is served."""
    spec = definition["spec"]
    names = spec["names"]
    return tuple(
        Kind(
            group=spec["group"],
            version=one["name"],
            plural=names["plural"],
            kind=names["kind"],
            namespaced=spec.get("scope") == "Namespaced",
            short=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            has_status="status" in (one.get("subresources") or {}),
            counts=True,
            unconditional=False,
            typed=False,
            merge_keys=_OWNERS,
            apply_keys=_OWNERS,
            selectable=frozenset(each["jsonPath"].strip(".") for each in one.get("selectableFields") or ()),
            schema=at(one, "schema.openAPIV3Schema"),
            columns=tuple(one.get("additionalPrinterColumns") or ()),
        )
        for one in spec.get("versions") or ()
        if one.get("served")
    )


def established(said: Object, *, now: str) -> Object:
    """A definition with the status that says it is served; a ``RefusedError`` where it has another's name."""
    spec = said.get("spec")
    full = f"{at(spec, 'names.plural')}.{at(spec, 'group')}"
    name = said["metadata"]["name"]
    if name != full:
        message = f'Invalid value: "{name}": must be spec.names.plural+"."+spec.group'
        raise invalid(DEFINITIONS, name, (Cause(field="metadata.name", message=message),))
    names, stored = said["spec"]["names"], [one["name"] for one in said["spec"]["versions"] if one.get("storage")]
    conditions = [
        {
            "type": which,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": at(said, "metadata.creationTimestamp") or now,
        }
        for which, reason, message in (
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        )
    ]
    status = {"conditions": conditions, "acceptedNames": names, "storedVersions": stored}
    if canonical(said.get("status")) == canonical(status):
        return said
    return {**without_status(said), "status": status}
