"""The API of a cluster as a value: requests in, answers out. No socket, no clock of its own.

Behaves as Kubernetes documents its API, but has no scheduler, kubelet or garbage collector. ``controllers`` does
the part of their work that tests need.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final

from tests.cluster_double.asking import Request, Target, resumed, target, token, too_old, version
from tests.cluster_double.definitions import defined, established
from tests.cluster_double.discovery import discovered
from tests.cluster_double.journal import Journal, Key
from tests.cluster_double.json_object import Object, canonical, copied, metadata
from tests.cluster_double.kinds import BUILT_IN, DEFINITIONS, NAMESPACES, PODS, Kind
from tests.cluster_double.ownership import Writer, applied, updated
from tests.cluster_double.patches import merged, stepped, strategic
from tests.cluster_double.refusal import RefusedError, bad_request
from tests.cluster_double.selection import selected
from tests.cluster_double.tables import table
from tests.cluster_double.watching import Watching
from tests.cluster_double.writing import changed, created, grace, must_say_version, named, strict

_MERGE: Final = "application/merge-patch+json"
_STRATEGIC: Final = "application/strategic-merge-patch+json"
_JSON: Final = "application/json-patch+json"
_APPLY: Final = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a request is answered by."""

    code: int
    body: Object
    warnings: tuple[str, ...] = ()
    retry_after_s: int | None = None


class Cluster:
    """The objects of a cluster behind their API. ``now`` is a clock, in UTC."""

    def __init__(self, *, now: Callable[[], datetime], rng: Random, journal: Journal | None = None) -> None:
        self.journal = journal or Journal()
        self._now = now
        self._rng = rng
        self._kinds: dict[tuple[str, str, str], Kind] = {}
        self._defined: dict[str, tuple[Kind, ...]] = {}
        self._learn(BUILT_IN)
        for name in ("default", "kube-system"):
            heading = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            self.answer(Request(method="POST", path="/api/v1/namespaces", body=json.dumps(heading).encode()))

    @property
    def kinds(self) -> Iterable[Kind]:
        """All kinds that are served now."""
        return self._kinds.values()

    def answer(self, request: Request) -> Answer:
        """The answer to a request other than a watch; its changes are in the journal."""
        try:
            found = discovered(request.path, self.kinds) if request.method == "GET" else None
            if found is not None:
                return Answer(code=200, body=found)
            return self._answer(request, target(request.path, self._kinds))
        except RefusedError as refused:
            return Answer(code=refused.code, body=refused.status(), retry_after_s=refused.retry_after_s)

    def watching(self, request: Request) -> Watching:
        """The watch that a request starts; ``RefusedError`` if it is invalid."""
        which = target(request.path, self._kinds)
        query = request.query
        fields = query.get("fieldSelector", "")
        if which.name:
            fields = ",".join(filter(None, (fields, f"metadata.name={which.name}")))
        test = selected(which.kind, query.get("labelSelector", ""), fields)
        asked, revision = version(query.get("resourceVersion", "")), self.journal.revision
        bookmarks = query.get("allowWatchBookmarks") in {"true", "1"}
        initial = query.get("sendInitialEvents")
        found = Watching(
            kind=which.kind, namespace=which.namespace, test=test, revision=asked or revision, bookmarks=bookmarks,
            timeout_s=float(query.get("timeoutSeconds") or 1800),
        )  # fmt: skip
        if initial == "true" or (not asked and initial is None):
            held = self._listed(which, self.journal.objects, test)
            first = [{"type": "ADDED", "object": found.shown(one)} for _, one in held]
            if initial == "true" and bookmarks:
                first.append(found.bookmark(revision, after_first=True))
            return Watching(
                kind=which.kind, namespace=which.namespace, test=test, revision=revision, first=tuple(first),
                bookmarks=bookmarks, timeout_s=found.timeout_s,
            )  # fmt: skip
        return found

    # Reading

    def _answer(self, request: Request, which: Target) -> Answer:  # noqa: PLR0911 - one line per verb
        match request.method, bool(which.name):
            case "GET", True:
                return self._shown(request, which, self._one(which))
            case "GET", False:
                return Answer(code=200, body=self._list(request, which))
            case "POST", False:
                return self._create(request, which, request.object())
            case "PUT", True:
                return self._replace(request, which)
            case "PATCH", True:
                return self._patch(request, which)
            case "DELETE", True:
                return self._delete(request, which)
            case "DELETE", False:
                return self._delete_all(request, which)
            case _:
                raise RefusedError(
                    405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
                )

    def _found(self, which: Target) -> Object | None:
        """The object in the version that is asked for; conversion changes nothing else."""
        found = self.journal.objects.get(which.key)
        return None if found is None else {**found, "apiVersion": which.kind.api_version}

    def _one(self, which: Target) -> Object:
        if (found := self._found(which)) is None:
            raise which.missing()
        return found

    def _shown(
        self, request: Request, which: Target, value: Object, *, code: int = 200, warnings: Sequence[str] = ()
    ) -> Answer:
        shown = {**value, "apiVersion": which.kind.api_version}
        if "as=Table" in request.accept:
            shown = table(which.kind, [shown], metadata(value), now=self._now())
        return Answer(code=code, body=shown, warnings=tuple(warnings))

    def _listed(
        self, which: Target, objects: Mapping[Key, Object], test: Callable[[Object], bool]
    ) -> list[tuple[tuple[str, str], Object]]:
        storage = which.kind.storage
        found = (
            ((key[1], key[2]), one)
            for key, one in objects.items()
            if key[0] == storage and which.namespace in {"", key[1]} and test(one)
        )
        return sorted(found, key=lambda pair: pair[0])

    def _list(self, request: Request, which: Target) -> Object:
        query, journal = request.query, self.journal
        test = selected(which.kind, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        asked, revision, after = version(query.get("resourceVersion", "")), journal.revision, ("", "")
        if more := query.get("continue"):
            if asked:
                raise bad_request("specifying resource version is not allowed when using continue")
            revision, after = resumed(more)
        elif asked > revision:
            raise RefusedError(504, "Timeout", f"Too large resource version: {asked}, current: {revision}",
                               retry_after_s=1)  # fmt: skip
        elif query.get("resourceVersionMatch") == "Exact":
            revision = asked
        objects = journal.at(revision)
        if objects is None:
            raise too_old(listing=bool(more))
        found = [pair for pair in self._listed(which, objects, test) if pair[0] > after]
        limit = int(query.get("limit") or 0)
        about: Object = {"resourceVersion": str(revision)}
        if limit and len(found) > limit:
            about["continue"] = token(revision, found[limit - 1][0])
            if not (query.get("labelSelector") or query.get("fieldSelector")):
                about["remainingItemCount"] = len(found) - limit
            found = found[:limit]
        shown = [{**one, "apiVersion": which.kind.api_version} for _, one in found]
        if "as=Table" in request.accept:
            return table(which.kind, shown, about, now=self._now())
        if which.kind.typed:
            # Lists of built-in kinds say once, for all of them, what their items are.
            shown = [
                {key: said for key, said in one.items() if key not in {"kind", "apiVersion"}} for one in shown
            ]
        return {
            "kind": f"{which.kind.kind}List",
            "apiVersion": which.kind.api_version,
            "metadata": about,
            "items": shown,
        }

    # Writing

    def _create(self, request: Request, which: Target, said: Object, *, name: str = "") -> Answer:
        kind = which.kind
        value = named(kind, copied(said), which.namespace, name, self._rng)
        about = metadata(value)
        which = Target(kind=kind, namespace=which.namespace, name=about["name"])
        if kind.namespaced:
            home = self.journal.objects.get((NAMESPACES.storage, "", which.namespace))
            if home is None:
                raise Target(kind=NAMESPACES, name=which.namespace).missing()
        if which.key in self.journal.objects:
            raise RefusedError(
                409, "AlreadyExists", f'{kind.storage} "{which.name}" already exists',
                kind=kind.plural, group=kind.group, name=which.name,
            )  # fmt: skip
        if kind is NAMESPACES:
            value = {**value, "status": {"phase": "Active"}}
        shaped = created(kind, value, now=self._stamp())
        final = shaped.value
        if kind is NAMESPACES:
            final["status"] = {"phase": "Active"}
        warnings = strict(kind, shaped.dropped, request.query)
        if kind is DEFINITIONS:
            final = established(final, now=self._stamp())
        if request.content_type != _APPLY:
            writer = Writer(manager=request.manager, operation="Update", api_version=kind.api_version)
            final = updated(kind, None, final, writer, now=self._stamp())
        return self._stored(request, which, None, final, code=201, warnings=warnings)

    def _replace(self, request: Request, which: Target) -> Answer:
        said = named(which.kind, copied(request.object()), which.namespace, which.name, self._rng)
        before = self._one(which)
        must_say_version(which.kind, said)
        return self._changed(request, which, before, said, operation="Update")

    def _patch(self, request: Request, which: Target) -> Answer:
        kind, sort = which.kind, request.content_type
        before = self._found(which)
        if sort == _APPLY:
            return self._apply(request, which, before)
        if before is None:
            raise which.missing()
        match sort:
            case "application/merge-patch+json":
                said = merged(before, request.object())
            case "application/json-patch+json":
                said = stepped(before, request.said())
            case "application/strategic-merge-patch+json" if kind.typed:
                said = strategic(before, request.object(), kind.merge_keys)
            case _:
                known = [_JSON, _MERGE, *([_STRATEGIC] if kind.typed else []), _APPLY]
                raise RefusedError(
                    415, "UnsupportedMediaType",
                    "the body of the request was in an unknown format - accepted media types include: "
                    + ", ".join(known),
                )  # fmt: skip
        said = named(
            kind, copied({**said, "apiVersion": kind.api_version}), which.namespace, which.name, self._rng
        )
        return self._changed(request, which, before, said, operation="Update")

    def _apply(self, request: Request, which: Target, before: Object | None) -> Answer:
        kind, query = which.kind, request.query
        if not query.get("fieldManager"):
            raise RefusedError(
                422, "Invalid",
                'PatchOptions.meta.k8s.io "" is invalid: '
                "fieldManager: Required value: is required for apply patch",
            )  # fmt: skip
        said = named(kind, copied(request.object()), which.namespace, which.name, self._rng)
        if metadata(said).get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        writer = Writer(
            manager=request.manager, operation="Apply", api_version=kind.api_version, subresource=which.subresource
        )
        now = self._stamp()
        if before is None:
            if which.subresource:
                raise which.missing()
            if uid := metadata(said).get("uid"):
                why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                raise RefusedError(409, "Conflict", why)
            empty: Object = {key: said[key] for key in ("apiVersion", "kind")} | {"metadata": {}}
            owned = applied(kind, empty, said, writer, force=True, now=now)
            return self._create(request, which, owned, name=which.name)
        if metadata(said).get("uid", metadata(before)["uid"]) != metadata(before)["uid"]:
            raise RefusedError(409, "Conflict", "uid mismatch: the object was recreated")
        force = query.get("force") == "true"
        asked = metadata(said).get("resourceVersion")
        after = applied(kind, before, said, writer, force=force, now=now)
        if asked:
            after["metadata"]["resourceVersion"] = asked
        return self._changed(request, which, before, after, operation="Apply")

    def _changed(self, request: Request, which: Target, before: Object, said: Object, *, operation: str) -> Answer:
        kind = which.kind
        shaped = changed(kind, before, said, subresource=which.subresource, patched=request.method == "PATCH")
        warnings = strict(kind, shaped.dropped, request.query)
        after = shaped.value
        if kind is DEFINITIONS and not which.subresource:
            after = established(after, now=self._stamp())
        if operation != "Apply":
            writer = Writer(
                manager=request.manager, operation=operation, api_version=kind.api_version,
                subresource=which.subresource,
            )  # fmt: skip
            after = updated(kind, before, after, writer, now=self._stamp())
        return self._stored(request, which, before, after, warnings=warnings)

    def _stored(
        self, request: Request, which: Target, before: Object | None, after: Object, *, code: int = 200,
        warnings: Sequence[str] = (),
    ) -> Answer:  # fmt: skip
        if request.dry:
            return self._shown(request, which, after, code=code, warnings=warnings)
        about = metadata(after)
        if about.get("deletionTimestamp") and not about.get("finalizers") and which.kind is not PODS:
            self._removed(which.key)
            return self._shown(request, which, after, warnings=warnings)
        # What changes nothing is not written, and has no new version.
        if before is None or canonical(before) != canonical(after):
            after = self.journal.put(which.key, copied(after))
            self._noticed(which.key, after)
        return self._shown(request, which, after, code=code, warnings=warnings)

    # Deleting

    def _delete(self, request: Request, which: Target) -> Answer:
        options = request.object() if request.body else {}
        found = self._one(which)
        about = metadata(found)
        wanted = options.get("preconditions") or {}
        for what in ("uid", "resourceVersion"):
            if wanted.get(what) and wanted[what] != about[what]:
                raise RefusedError(
                    409, "Conflict",
                    f"Precondition failed: {what} in precondition: {wanted[what]}, in object meta: {about[what]}",
                    kind=which.kind.plural, group=which.kind.group, name=which.name,
                )  # fmt: skip
        asked = options.get("gracePeriodSeconds", request.query.get("gracePeriodSeconds"))
        grace_s = grace(which.kind, found, None if asked is None else int(asked))
        if request.dry:
            return Answer(code=200, body=_success(which, about))
        if which.kind is NAMESPACES:
            for key in [one for one in self.journal.objects if one[1] == which.name]:
                self._removed(key)
        if not grace_s and not about.get("finalizers"):
            gone = self._removed(which.key)
            return Answer(code=200, body=gone if which.kind is PODS else _success(which, about))
        ends = self._now() + timedelta(seconds=grace_s)
        if "deletionTimestamp" in about and about.get("deletionGracePeriodSeconds", 0) <= grace_s:
            return Answer(code=200, body=found)
        marked = {**about, "deletionTimestamp": _text(ends), "deletionGracePeriodSeconds": grace_s}
        if "generation" in about:
            marked["generation"] = about["generation"] + 1
        return Answer(code=200, body=self.journal.put(which.key, copied({**found, "metadata": marked})))

    def _delete_all(self, request: Request, which: Target) -> Answer:
        query = request.query
        test = selected(which.kind, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        for (namespace, name), _ in self._listed(which, self.journal.objects, test):
            self._delete(request, Target(kind=which.kind, namespace=namespace, name=name))
        return Answer(code=200, body=_success(which, {}))

    def end(self, key: Key) -> None:
        """Take an object away as the kubelet does at the end of a pod, if nothing holds it any more."""
        found = self.journal.objects.get(key)
        if found is not None and not metadata(found).get("finalizers"):
            self._removed(key)

    def _removed(self, key: Key) -> Object:
        gone = self.journal.remove(key)
        if key[0] == DEFINITIONS.storage:
            storage = key[2]
            for one in [each for each in self.journal.objects if each[0] == storage]:
                self.journal.remove(one)
            for kind in self._defined.pop(storage, ()):
                del self._kinds[kind.group, kind.version, kind.plural]
        return gone

    # Definitions

    def _noticed(self, key: Key, value: Object) -> None:
        if key[0] != DEFINITIONS.storage:
            return
        for kind in self._defined.get(key[2], ()):
            self._kinds.pop((kind.group, kind.version, kind.plural), None)
        self._defined[key[2]] = defined(value)
        self._learn(self._defined[key[2]])

    def _learn(self, kinds: Iterable[Kind]) -> None:
        self._kinds |= {(one.group, one.version, one.plural): one for one in kinds}

    def _stamp(self) -> str:
        return _text(self._now())


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _success(which: Target, about: Object) -> Object:
    details = {"name": which.name, "group": which.kind.group, "kind": which.kind.plural, "uid": about.get("uid")}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {key: text for key, text in details.items() if text},
    }
