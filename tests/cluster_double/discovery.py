"""What the API says of itself: its version, its groups, and the resources of each.

Source: Kubernetes API concepts, "API discovery" (the unaggregated form).
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from tests.cluster_double.json_object import Object
from tests.cluster_double.kinds import Kind
from tests.cluster_double.openapi import documented

VERSION: Final[Object] = {
    "major": "1",
    "minor": "34",
    "gitVersion": "v1.34.0+switchgear.cluster-double",
    "gitCommit": "",
    "gitTreeState": "",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "a double of the API server, for tests; not Kubernetes",
}
_VERBS: Final = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def discovered(path: str, kinds: Iterable[Kind]) -> Object | None:  # noqa: PLR0911 - one line per document
    """The document at a path; None where the path is not one of discovery's."""
    match [part for part in path.split("/") if part]:
        case ["version"]:
            return VERSION
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["apis"]:
            groups = sorted({one.group for one in kinds if one.group})
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(one, kinds) for one in groups]}
        case ["api", version]:
            return _resources("", version, kinds)
        case ["apis", group] if any(one.group == group for one in kinds):
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, kinds)}
        case ["apis", group, version]:
            return _resources(group, version, kinds)
        case _:
            return documented(path, kinds)


def _group(group: str, kinds: Iterable[Kind]) -> Object:
    versions = sorted({one.version for one in kinds if one.group == group}, key=_priority, reverse=True)
    said = [{"groupVersion": f"{group}/{one}", "version": one} for one in versions]
    return {"name": group, "versions": said, "preferredVersion": said[0]}


def _priority(version: str) -> tuple[bool, bool, int, int]:
    """Source: Kubernetes, "Versions in CustomResourceDefinitions", version priority."""
    parts = re.fullmatch(r"v(\d+)(?:(alpha|beta)(\d+))?", version)
    assert parts, version
    number, stage, minor = parts.groups()
    return not stage, stage == "beta", int(number), int(minor or 0)


def _resources(group: str, version: str, kinds: Iterable[Kind]) -> Object | None:
    here = [one for one in kinds if (one.group, one.version) == (group, version)]
    if not here:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": [said for one in here for said in _said(one)],
    }


def _said(kind: Kind) -> Iterator[Object]:
    about: Object = {"singularName": kind.kind.lower(), "namespaced": kind.namespaced, "kind": kind.kind}
    more = {"shortNames": list(kind.short), "categories": list(kind.categories)}
    yield {"name": kind.plural, **about, "verbs": _VERBS, **{key: said for key, said in more.items() if said}}
    if kind.has_status:
        yield {"name": f"{kind.plural}/status", **about, "verbs": ["get", "patch", "update"]}
