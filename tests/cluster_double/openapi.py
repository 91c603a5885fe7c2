"""What kubectl reads before it writes: that each kind can be patched, and that the server judges its fields.

kubectl looks for the parameter ``fieldValidation`` of a kind's PATCH, and refuses to apply anything where it finds
neither that nor a schema of its own to judge by. ``kubectl explain`` shows the schemas of defined kinds. Built-in
kinds have none here.

Source: Kubernetes API concepts, "OpenAPI V3" and "Field validation".
"""

from collections.abc import Iterable
from typing import Final

from tests.cluster_double.json_object import Object
from tests.cluster_double.kinds import Kind

_PARAMETERS: Final = [
    {"name": name, "in": "query", "schema": {"type": "string"}}
    for name in ("dryRun", "fieldManager", "fieldValidation")
]
_HEADING: Final[Object] = {
    "apiVersion": {"type": "string"},
    "kind": {"type": "string"},
    "metadata": {"type": "object"},
}


def documented(path: str, kinds: Iterable[Kind]) -> Object | None:
    """The OpenAPI document at a path; None where there is none."""
    match [part for part in path.split("/") if part]:
        case ["openapi", "v3"]:
            places = sorted({_place(one) for one in kinds})
            return {"paths": {place: {"serverRelativeURL": f"/openapi/v3/{place}"} for place in places}}
        case ["openapi", "v3", *rest]:
            here = [one for one in kinds if _place(one) == "/".join(rest)]
            return _document(here) if here else None
        case _:
            return None


def _place(kind: Kind) -> str:
    return f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"


def _document(kinds: Iterable[Kind]) -> Object:
    paths: Object = {}
    schemas: Object = {}
    for one in kinds:
        which = {"group": one.group, "version": one.version, "kind": one.kind}
        scope = "/namespaces/{namespace}" if one.namespaced else ""
        asked = {"x-kubernetes-group-version-kind": which, "responses": {}}
        paths[f"/{_place(one)}{scope}/{one.plural}/{{name}}"] = {
            "get": {**asked, "x-kubernetes-action": "get"},
            "patch": {**asked, "x-kubernetes-action": "patch", "parameters": _PARAMETERS},
        }
        said = one.schema or {"type": "object"}
        schemas[f"{one.group or 'core'}.{one.version}.{one.kind}"] = {
            **said,
            "properties": {**_HEADING, **said.get("properties", {})},
            "x-kubernetes-group-version-kind": [which],
        }
    about = {"title": "a double of the API server, for tests; not Kubernetes", "version": "v1"}
    return {"openapi": "3.0.0", "info": about, "paths": paths, "components": {"schemas": schemas}}
