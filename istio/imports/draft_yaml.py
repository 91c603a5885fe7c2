"""Drafts as text: YAML with a comment behind each value that says where it is from."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import yaml

from istio.imports.policy_draft import PolicyDraft, Scalar, SourcedValue, Tree
from policies.origin import Step
from policies.yaml_text import resolved
from xds_server.cli.diagnostics import printable

_PLAIN: Final = re.compile(r"[A-Za-z0-9/][A-Za-z0-9_./-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLine:
    """One line of text, and the draft and field it belongs to."""

    text: str
    draft: PolicyDraft | None = None
    steps: tuple[Step, ...] = ()


def draft_lines(drafts: Sequence[PolicyDraft], heading: str) -> tuple[DraftLine, ...]:
    """The drafts as one stream of YAML documents below a heading."""
    written = [DraftLine(text=f"# {one}".rstrip()) for one in heading.splitlines()]
    for number, draft in enumerate(drafts):
        if number:
            written.append(DraftLine(text="---"))
        written.append(DraftLine(text=_comment(f"From {draft.node.place}. {draft.about}".rstrip())))
        written += _block(draft.tree(), draft, (), 0)
    return tuple(written)


def lines_text(written: Sequence[DraftLine]) -> str:
    """The lines as a file."""
    return "".join(f"{line.text}\n" for line in written)


def _block(tree: dict[str, Tree], draft: PolicyDraft, steps: tuple[Step, ...], depth: int) -> Iterator[DraftLine]:
    for name, inner in tree.items():
        here = (*steps, name)
        head = f"{'  ' * depth}{_scalar(name)}:"
        yield from _below(head, inner, draft, here, depth + 1)


def _below(head: str, tree: Tree, draft: PolicyDraft, steps: tuple[Step, ...], depth: int) -> Iterator[DraftLine]:
    if isinstance(tree, SourcedValue):
        yield DraftLine(text=f"{head} {_value(tree)}", draft=draft, steps=steps)
    elif not tree:
        yield DraftLine(text=f"{head} {'{}' if isinstance(tree, dict) else '[]'}", draft=draft, steps=steps)
    else:
        yield DraftLine(text=head, draft=draft, steps=steps)
        if isinstance(tree, dict):
            yield from _block(tree, draft, steps, depth)
        else:
            yield from _items(tree, draft, steps, depth)


def _items(items: list[Tree], draft: PolicyDraft, steps: tuple[Step, ...], depth: int) -> Iterator[DraftLine]:
    for number, inner in enumerate(items):
        here = (*steps, number)
        dash = f"{'  ' * depth}-"
        if isinstance(inner, dict) and inner:
            # The first field stands behind the dash, the others below it.
            first, *rest = _block(inner, draft, here, depth + 1)
            yield DraftLine(text=f"{dash} {first.text.lstrip()}", draft=draft, steps=first.steps)
            yield from rest
        else:
            yield from _below(dash, inner, draft, here, depth + 1)


def _value(said: SourcedValue) -> str:
    value = said.value
    text = f"[{', '.join(_scalar(one) for one in value)}]" if isinstance(value, tuple) else _scalar(value)
    return f"{text} {_comment(said.comment)}" if said.comment else text


def _scalar(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and resolved(value) == value:
            return value
        return yaml.safe_dump(value, default_style='"', width=10**9, allow_unicode=True).rstrip("\n")
    return str(value)


def _comment(text: str) -> str:
    return f"# {printable(text)}".replace("\n", " ").replace("\t", " ")
