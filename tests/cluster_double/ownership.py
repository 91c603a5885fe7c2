"""Who wrote which field: server-side apply, and what other writes make of it.

Source: Kubernetes, "Server-Side Apply"; ``metadata.managedFields``.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tests.cluster_double.json_object import Object, canonical, metadata
from tests.cluster_double.kinds import Kind
from tests.cluster_double.layout import Layout, Path, laid_over, leaves, without
from tests.cluster_double.refusal import Cause, RefusedError

Paths: TypeAlias = frozenset[Path]

_OWNERLESS: Final = frozenset(
    ("f:metadata", f"f:{name}")
    for name in (
        "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields",
        "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "generateName",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Who writes, and how: ``Apply``, or ``Update`` for everything else."""

    manager: str
    operation: str
    api_version: str
    subresource: str = ""

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> "Writer":
        """Of an entry of ``managedFields``."""
        return cls(
            manager=entry.get("manager", ""),
            operation=entry.get("operation", ""),
            api_version=entry.get("apiVersion", ""),
            subresource=entry.get("subresource", ""),
        )


def owned_fields(kind: Kind, value: Object, *, status: bool | None) -> Mapping[Path, Any]:
    """Parts of an object that have owners, with their values; of its status only, of all but it, or of both."""
    found: dict[Path, Any] = {}
    for path, said in leaves(Layout.of(kind), value):
        ownerless = path[0] in {"f:apiVersion", "f:kind"} or path[:2] in _OWNERLESS or path == ("f:metadata",)
        if not ownerless and (status is None or (path[0] == "f:status") is status):
            found[path] = said
    return found


def applied(kind: Kind, live: Object, said: Object, writer: Writer, *, force: bool, now: str) -> Object:
    """``live`` after an apply by ``writer``: the applied fields are the writer's, its earlier other ones are
    removed.

    A ``RefusedError`` (409) where others own fields that would change, unless by ``force``, which takes them.
    """
    status = _part(kind, writer)
    owners = _owners(live)
    mine_before = owners.pop(writer, frozenset())
    fields = owned_fields(kind, said, status=status)
    here = owned_fields(kind, live, status=status)
    contested = [
        (other, path)
        for other, paths in owners.items()
        for path in sorted(paths & fields.keys())
        if canonical(here.get(path)) != canonical(fields[path])
    ]
    if contested and not force:
        raise _conflicts(kind, metadata(live).get("name", ""), contested)
    for other, path in contested:
        owners[other] -= {path}
    mine = frozenset(fields)
    result = laid_over(Layout.of(kind), live, _relevant(said, status))
    elsewhere = frozenset().union(*owners.values())
    left = elsewhere | mine
    # Items before what is in them, as that is how they are known.
    for path in sorted(mine_before - left, key=len):
        if not any(other[: len(path)] == path for other in left):
            result = without(Layout.of(kind), result, path)
    owners[writer] = mine
    return _with_owners(live, result, owners, writer, now)


def updated(kind: Kind, before: Object | None, after: Object, writer: Writer, *, now: str) -> Object:
    """``after``, where the fields that differ from ``before`` are the writer's now."""
    status = _part(kind, writer)
    old = owned_fields(kind, before, status=status) if before is not None else {}
    new = owned_fields(kind, after, status=status)
    changed = frozenset(
        path for path, said in new.items() if path not in old or canonical(old[path]) != canonical(said)
    )
    gone = frozenset(old) - frozenset(new)
    owners = _owners(before or {})
    for other in owners:
        if other != writer:
            owners[other] -= {path for path in changed if path in old} | gone
    mine = (owners.get(writer, frozenset()) - gone) | changed
    if mine:
        owners[writer] = mine
    return _with_owners(before or {}, after, owners, writer, now)


def _part(kind: Kind, writer: Writer) -> bool | None:
    """Which part of an object a writer can write: its status, all but it, or everything."""
    return writer.subresource == "status" if kind.has_status and not kind.status_at_birth else None


def _relevant(said: Object, status: bool | None) -> Object:
    if status is None:
        return said
    return {key: one for key, one in said.items() if (key == "status") is status or key == "metadata"}


def _conflicts(kind: Kind, name: str, contested: Sequence[tuple[Writer, Path]]) -> RefusedError:
    causes = [
        Cause(
            reason="FieldManagerConflict",
            message=f'conflict with "{other.manager}"'
            + (f" using {other.api_version}" if other.operation == "Update" else ""),
            field=dotted(path),
        )
        for other, path in contested
    ]
    first = f"{causes[0].message}: {causes[0].field}"
    count = f"{len(causes)} conflict{'s' if len(causes) > 1 else ''}"
    said = first if len(causes) == 1 else ", ".join(f"{one.message}: {one.field}" for one in causes)
    return RefusedError(
        409, "Conflict", f"Apply failed with {count}: {said}",
        kind=kind.plural, group=kind.group, name=name, causes=causes,
    )  # fmt: skip


def dotted(path: Path) -> str:
    """A path as conflicts name it: ``.spec.conditions[type="Ready"].status``."""
    return "".join(f".{step[2:]}" if step.startswith("f:") else f"[{step[2:]}]" for step in path)


def _owners(of: Object) -> dict[Writer, Paths]:
    return {
        Writer.read(entry): frozenset(_decoded(entry.get("fieldsV1") or {}))
        for entry in metadata(of).get("managedFields") or ()
    }


def _decoded(node: Object, path: Path = ()) -> Iterator[Path]:
    for step, inner in node.items():
        if step == ".":
            yield path
        elif inner:
            yield from _decoded(inner, (*path, step))
        else:
            yield (*path, step)


def _encoded(paths: Iterable[Path]) -> Object:
    root: Object = {}
    every = frozenset(paths)
    for path in sorted(every):
        node = root
        for step in path:
            node = node.setdefault(step, {})
    for path in every:
        node = root
        for step in path:
            node = node[step]
        if node:
            node["."] = {}
    return root


def _with_owners(
    before: Object, after: Object, owners: Mapping[Writer, Paths], writer: Writer, now: str
) -> Object:
    times = {Writer.read(one): one for one in metadata(before).get("managedFields") or ()}
    entries = []
    for one, paths in owners.items():
        if not paths:
            continue
        fields = _encoded(paths)
        known = times.get(one, {})
        same = canonical(known.get("fieldsV1")) == canonical(fields) and (
            one != writer or canonical(_bare(before)) == canonical(_bare(after))
        )
        entries.append(
            {
                "manager": one.manager,
                "operation": one.operation,
                "apiVersion": one.api_version,
                "time": known["time"] if same else now,
                "fieldsType": "FieldsV1",
                "fieldsV1": fields,
                **({"subresource": one.subresource} if one.subresource else {}),
            }
        )
    about = {key: one for key, one in metadata(after).items() if key != "managedFields"}
    return {**after, "metadata": {**about, **({"managedFields": entries} if entries else {})}}


def _bare(value: Object) -> Object:
    ignored = {"managedFields", "resourceVersion"}
    return {**value, "metadata": {key: one for key, one in metadata(value).items() if key not in ignored}}
