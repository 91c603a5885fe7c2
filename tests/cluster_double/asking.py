"""Requests as the API understands them: which objects, which version, and what is to be done.

Source: Kubernetes API concepts, "Resource URIs" and "Resource versions".
"""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from tests.cluster_double.json_object import Object
from tests.cluster_double.kinds import Kind
from tests.cluster_double.refusal import RefusedError, bad_request, expired


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as it came, without its transport."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    content_type: str = ""
    accept: str = ""
    agent: str = "unknown"
    body: bytes = b""

    @property
    def manager(self) -> str:
        """Who writes, for ``managedFields``."""
        return self.query.get("fieldManager") or self.agent.partition("/")[0] or "unknown"

    @property
    def dry(self) -> bool:
        """Whether nothing of it may stay."""
        return self.query.get("dryRun") == "All"

    def said(self) -> Any:
        """The body; JSON is YAML too, and applied ones come as either."""
        try:
            if "yaml" in self.content_type:
                return yaml.safe_load(self.body)
            return json.loads(self.body)
        except (ValueError, yaml.YAMLError) as error:
            raise bad_request(f"the object provided is unrecognized: {error}") from error

    def object(self) -> Object:
        """The body, which has to be an object."""
        said = self.said()
        if not isinstance(said, dict):
            raise bad_request("the object provided is unrecognized: it is not an object")
        return said


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a path names: all objects of a kind, those of a namespace, one, or a part of one."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """Where one object is kept."""
        return (self.kind.storage, self.namespace, self.name)

    def missing(self) -> RefusedError:
        """There is no such object."""
        return RefusedError(
            404, "NotFound", f'{self.kind.storage} "{self.name}" not found',
            kind=self.kind.plural, group=self.kind.group, name=self.name,
        )  # fmt: skip


def nothing_here() -> RefusedError:
    """404 for an unknown path or an undefined kind."""
    return RefusedError(404, "NotFound", "the server could not find the requested resource")


def target(path: str, kinds: Mapping[tuple[str, str, str], Kind]) -> Target:
    """What a path names; ``kinds`` are by group, version and plural."""
    parts = [part for part in path.split("/") if part]
    match parts:
        case ["api", version, *rest]:
            group = ""
        case ["apis", group, version, *rest]:
            pass
        case _:
            raise nothing_here()
    namespace = ""
    # /api/v1/namespaces/NAME/status is a part of a namespace, /api/v1/namespaces/NAME/pods are pods of one.
    if rest[:1] == ["namespaces"] and len(rest) >= 3 and (group, version, rest[2]) in kinds:
        namespace, rest = rest[1], rest[2:]
    if not rest or len(rest) > 3 or (kind := kinds.get((group, version, rest[0]))) is None:
        raise nothing_here()
    if bool(namespace) and not kind.namespaced:
        raise nothing_here()
    name, subresource = [*rest[1:], "", ""][:2]
    if (name and kind.namespaced and not namespace) or (
        subresource and not (subresource == "status" and kind.has_status)
    ):
        raise nothing_here()
    return Target(kind=kind, namespace=namespace, name=name, subresource=subresource)


def version(text: str) -> int:
    """A resource version as a number; none, and ``0``, are 0."""
    if text and not text.isdecimal():
        raise bad_request(f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: invalid syntax')
    return int(text or "0")


def token(revision: int, last: tuple[str, str]) -> str:
    """What asks for the next page of a list that was begun at ``revision``, after the object ``last``."""
    said = {"v": "meta.k8s.io/v1", "rv": revision, "start": "/".join(last)}
    return base64.urlsafe_b64encode(json.dumps(said).encode()).decode().rstrip("=")


def resumed(text: str) -> tuple[int, tuple[str, str]]:
    """The version and the last object of a page token."""
    try:
        said = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        namespace, _, name = said["start"].partition("/")
        return int(said["rv"]), (namespace, name)
    except (binascii.Error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise bad_request(f"continue key is not valid: {error}") from error


def too_old(*, listing: bool) -> RefusedError:
    """410: the page token, or the version, is no longer kept."""
    if listing:
        return expired(
            "The provided continue parameter is too old to display a consistent list result. You must start a new "
            "list without the continue parameter."
        )
    return expired("The resourceVersion for the provided list is too old.")
