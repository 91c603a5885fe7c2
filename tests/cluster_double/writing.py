"""What becomes of an object on its way in: what a writer may set, what the API sets, and what it refuses.

Source: the ``rest.BeforeCreate`` / ``BeforeUpdate`` of apiserver's registry, the strategies of its kinds.
"""

import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.cluster_double.json_object import Object, at, canonical, metadata
from tests.cluster_double.kinds import PODS, Kind
from tests.cluster_double.refusal import Cause, RefusedError, bad_request
from tests.cluster_double.rules import broken
from tests.cluster_double.structural import defaulted, pruned, unknown, wrong

_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_GRACE_S: Final = 30
_APIS_OWN: Final = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaped:
    """An object as it may be stored, and what was dropped from it."""

    value: Object
    dropped: tuple[str, ...] = ()


def named(kind: Kind, said: Object, namespace: str, name: str, rng: Random) -> Object:
    """The object as it was meant for this place, with a name; a ``RefusedError`` where it says another one."""
    if said.get("kind") != kind.kind or said.get("apiVersion") != kind.api_version:
        heading = f"{said.get('apiVersion')}, Kind={said.get('kind')}"
        raise bad_request(
            f"the object provided is unrecognized ({heading}), expected {kind.api_version}, {kind.kind}"
        )
    about = dict(metadata(said))
    if kind.namespaced and about.setdefault("namespace", namespace) != namespace:
        raise bad_request(
            f"the namespace of the provided object does not match the namespace sent on the request: "
            f"{about['namespace']} and {namespace}"
        )
    if not kind.namespaced:
        about.pop("namespace", None)
    if not about.get("name") and about.get("generateName") and not name:
        letters = "bcdfghjklmnpqrstvwxz2456789"
        about["name"] = about["generateName"] + "".join(rng.choice(letters) for _ in range(5))
    if name and about.setdefault("name", name) != name:
        raise bad_request(f"the name of the object ({about['name']}) does not match the name on the URL ({name})")
    given = about.get("name")
    if not isinstance(given, str) or not given:
        cause = Cause(
            field="metadata.name", message="Required value: name or generateName is required",
            reason="FieldValueRequired",
        )  # fmt: skip
        raise invalid(kind, "", (cause,))
    if len(given) > 253 or not _SUBDOMAIN.fullmatch(given):
        what = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'"
        raise invalid(kind, given, (Cause(field="metadata.name", message=f'Invalid value: "{given}": {what}'),))
    return {**said, "metadata": about}


def created(kind: Kind, said: Object, *, now: str) -> Shaped:
    """A new object as it will be stored."""
    about = {key: one for key, one in metadata(said).items() if key not in _APIS_OWN}
    if about.pop("resourceVersion", None):
        raise bad_request("resourceVersion should not be set on objects to be created")
    about |= {"uid": str(uuid.uuid4()), "creationTimestamp": now}
    about.pop("generation", None)
    if kind.counts:
        about["generation"] = 1
    value = {**said, "metadata": about}
    if kind.has_status and not kind.status_at_birth:
        value.pop("status", None)
    if kind is PODS:
        value["status"] = {"phase": "Pending", "qosClass": "BestEffort"}
    shaped = _shaped(kind, value)
    _judge(kind, shaped.value, None)
    return shaped


def changed(kind: Kind, before: Object, said: Object, *, subresource: str, patched: bool = False) -> Shaped:
    """An object as it will be stored in place of ``before``; through a subresource only that part of it."""
    old, new = metadata(before), metadata(said)
    if new.get("uid") and new["uid"] != old["uid"]:
        if patched:
            cause = Cause(field="metadata.uid", message=f'Invalid value: "{new["uid"]}": field is immutable')
            raise invalid(kind, old["name"], (cause,))
        raise _stale(kind, old["name"], "Precondition failed: UID in precondition differs from UID in object meta")
    version = new.get("resourceVersion")
    if version and version != old["resourceVersion"]:
        raise _stale(
            kind, old["name"],
            "the object has been modified; please apply your changes to the latest version and try again",
        )  # fmt: skip
    about = {key: one for key, one in new.items() if key not in _APIS_OWN}
    about |= {key: old[key] for key in _APIS_OWN if key in old}
    about["resourceVersion"] = old["resourceVersion"]
    about.pop("generation", None)
    if subresource:
        kept = {"managedFields": about["managedFields"]} if "managedFields" in about else {}
        about = {**old, **kept} if not kind.typed else {**about}
        said = {**before, "status": said["status"]} if "status" in said else without_status(before)
    elif kind.has_status:
        said = {**without_status(said), **({"status": before["status"]} if "status" in before else {})}
    shaped = _shaped(kind, {**said, "metadata": about})
    if "generation" in old:
        same = canonical(_counted(kind, before)) == canonical(_counted(kind, shaped.value))
        shaped.value["metadata"]["generation"] = old["generation"] + (0 if same else 1)
    _judge(kind, shaped.value, before)
    return shaped


def must_say_version(kind: Kind, said: Object) -> None:
    """Refuse a whole replacement that does not say what it replaces, of kinds that insist."""
    if not kind.unconditional and not metadata(said).get("resourceVersion"):
        cause = Cause(
            field="metadata.resourceVersion", message="Invalid value: 0: must be specified for an update"
        )  # fmt: skip
        raise invalid(kind, metadata(said).get("name", ""), (cause,))


def without_status(of: Object) -> Object:
    """All but the status."""
    return {key: one for key, one in of.items() if key != "status"}


def _counted(kind: Kind, of: Object) -> Object:
    """What a new generation is counted for."""
    ignored = {"metadata", "status"} if kind.has_status else {"metadata"}
    return {key: one for key, one in of.items() if key not in ignored}


def _shaped(kind: Kind, value: Object) -> Shaped:
    if kind.schema is None:
        return Shaped(value={**value, "metadata": dict(value["metadata"])})
    kept = pruned(kind.schema, value)
    dropped = tuple(unknown(value, kept))
    return Shaped(value={**defaulted(kind.schema, kept), "metadata": dict(value["metadata"])}, dropped=dropped)


def _judge(kind: Kind, value: Object, before: Object | None) -> None:
    if kind.schema is None:
        return
    causes = tuple(_causes(kind.schema, value, before))
    if causes:
        raise invalid(kind, metadata(value)["name"], causes)


def _causes(schema: Object, value: Object, before: Object | None) -> Iterator[Cause]:
    found = tuple(wrong(schema, value))
    yield from found
    if not found:
        # Rules can rely on the shape, so they are asked only about what has it.
        yield from broken(schema, value, before)


def invalid(kind: Kind, name: str, causes: tuple[Cause, ...]) -> RefusedError:
    """422: the object is understood, and not right."""
    listed = str(causes[0]) if len(causes) == 1 else f"[{', '.join(map(str, causes))}]"
    full = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    message = f'{full} "{name}" is invalid: {listed}'
    return RefusedError(422, "Invalid", message, kind=kind.kind, group=kind.group, name=name, causes=causes)


def _stale(kind: Kind, name: str, why: str) -> RefusedError:
    message = f'Operation cannot be fulfilled on {kind.storage} "{name}": {why}'
    return RefusedError(409, "Conflict", message, kind=kind.plural, group=kind.group, name=name)


def strict(kind: Kind, dropped: tuple[str, ...], asked: Mapping[str, str]) -> tuple[str, ...]:
    """Warnings about fields that were dropped; a ``RefusedError`` where the writer asked to be strict."""
    how = asked.get("fieldValidation", "Warn")
    if dropped and how == "Strict":
        listed = ", ".join(f'unknown field "{one}"' for one in dropped)
        raise bad_request(
            f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: '
            f"strict decoding error: {listed}"
        )
    return tuple(f'unknown field "{one}"' for one in dropped) if how == "Warn" else ()


def grace(kind: Kind, found: Object, asked: int | None) -> int:
    """How long an object stays when it is deleted: pods on a node until the kubelet has ended them."""
    if kind is not PODS or not at(found, "spec.nodeName") or at(found, "status.phase") in {"Succeeded", "Failed"}:
        return 0
    if asked is not None:
        return asked
    said = at(found, "spec.terminationGracePeriodSeconds")
    return _GRACE_S if said is None else int(said)
