"""A policy document while it is put together: values, each with the place that it is from."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from istio.imports.source_documents import SourceNode
from policies.origin import Step

Scalar: TypeAlias = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcedValue:
    """A value of a policy. ``node`` is what it is from, and ``note`` what else to say about it in a comment."""

    value: Scalar | tuple[Scalar, ...]
    node: SourceNode | None = None
    note: str = ""

    @property
    def comment(self) -> str:
        """Where it is from."""
        return " ".join(part for part in (self.node.place if self.node else "", self.note) if part)


Tree: TypeAlias = "SourcedValue | dict[str, Tree] | list[Tree]"


@dataclass(slots=True)
class PolicyDraft:
    """A document by kind and name. ``node`` is what it is from, ``about`` a comment in front of it.

    ``left_out``: it must not be written, for without what was not understood of it it would do harm.
    """

    kind: str
    name: str
    node: SourceNode
    spec: dict[str, Tree] = field(default_factory=dict)
    namespace: SourcedValue | None = None
    about: str = ""
    left_out: bool = False

    def put(self, path: str, said: SourcedValue | None) -> None:
        """Set a field (``breaker.cooldown``) unless the value is None. The first value wins."""
        if said is None:
            return
        *blocks, last = path.split(".")
        into = self.spec
        for name in blocks:
            inner = into.setdefault(name, {})
            if not isinstance(inner, dict):
                raise TypeError(path)
            into = inner
        before = into.setdefault(last, said)
        if before is not said and isinstance(before, SourcedValue) and said.node is not None:
            where = before.node.place if before.node else "elsewhere"
            if before.value == said.value:
                said.node.take()
            else:
                said.node.refuse(f"{self.kind} {self.name} has one value for {path}, and {where} sets another")

    def tree(self) -> dict[str, Tree]:
        """The document as it is written."""
        metadata: dict[str, Tree] = {"name": SourcedValue(value=self.name)}
        if self.namespace is not None:
            metadata["namespace"] = self.namespace
        return {
            "apiVersion": SourcedValue(value="switchgear.dev/v1alpha1"),
            "kind": SourcedValue(value=self.kind),
            "metadata": metadata,
            "spec": self.spec,
        }

    def drop(self, steps: tuple[Step, ...]) -> bool:
        """Remove the value at these steps; whether there was one."""
        into: Tree = self.tree()
        for step in steps[:-1]:
            into = _within(into, step)
        last = steps[-1]
        if isinstance(into, dict) and isinstance(last, str) and last in into:
            del into[last]
        elif isinstance(into, list) and isinstance(last, int) and last < len(into):
            into.pop(last)
        else:
            return False
        return True

    def nodes(self, steps: tuple[Step, ...]) -> Iterator[SourceNode]:
        """What the values at and within these steps are from."""
        found: Tree = self.tree()
        for step in steps:
            found = _within(found, step)
        yield from _nodes(found)


def pool_share(pool: PolicyDraft, weight: SourcedValue | None) -> Tree:
    """One of a route's pools, with its weight where it has one."""
    share: dict[str, Tree] = {"pool": SourcedValue(value=pool.name)}
    if weight is not None:
        share["weight"] = weight
    return share


def _within(tree: Tree, step: Step) -> Tree:
    if isinstance(tree, dict) and isinstance(step, str):
        return tree.get(step, {})
    if isinstance(tree, list) and isinstance(step, int) and step < len(tree):
        return tree[step]
    return {}


def _nodes(tree: Tree) -> Iterator[SourceNode]:
    if isinstance(tree, SourcedValue):
        if tree.node is not None:
            yield tree.node
    else:
        for inner in tree.values() if isinstance(tree, dict) else tree:
            yield from _nodes(inner)


_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9-]+")
_LONGEST_NAME: Final = 63


def policy_name(text: str) -> str:
    """The text as a name that a policy may have; ``imported`` where nothing of it can be."""
    return _NOT_IN_NAMES.sub("-", text.lower())[:_LONGEST_NAME].strip("-") or "imported"


@dataclass(slots=True)
class NameAllocator:
    """Names that are given out once."""

    allocated: set[str] = field(default_factory=set)

    def allocate(self, text: str) -> str:
        """An unused name derived from this text."""
        first = policy_name(text)
        name, count = first, 1
        while name in self.allocated:
            count += 1
            tail = f"-{count}"
            name = first[: _LONGEST_NAME - len(tail)].rstrip("-") + tail
        self.allocated.add(name)
        return name
