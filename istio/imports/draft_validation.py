"""Drafts to policies that our own loader takes; what it refuses is left out and listed with its reason.

Only whole statements are left out. A condition of a route is never dropped alone, for the route would then catch
requests that were never meant for it; nor one of its targets, for the others would get its share; nor the TLS of a
pool, for its engines would then be asked in plain text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from istio.imports.draft_yaml import DraftLine, draft_lines, lines_text
from istio.imports.import_remarks import ImportRemark, RemarkKind
from istio.imports.policy_draft import PolicyDraft
from istio.imports.source_documents import SourceDocument
from policies.findings import PolicyError, PolicyErrors
from policies.load import load_contents
from policies.model import KINDS
from policies.origin import Step
from policies.schema import field_at

_FILE: Final = Path("imported.yaml")
_WHOLE: Final = ("match", "pools", "listener", "fallbacks")
_TLS: Final = ("spec", "tls")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """Policies as text that was read again and found good, and everything to know about them.

    ``text`` is empty where nothing came of what was read. ``unknown_models``: pools that the caller named a model
    for, and that the files do not have.
    """

    text: str
    remarks: tuple[ImportRemark, ...]
    unknown_models: tuple[str, ...] = ()

    @property
    def understood(self) -> bool:
        """Whether all was understood."""
        return all(one.sort is not RemarkKind.NOT_UNDERSTOOD for one in self.remarks)


def import_drafts(
    drafts: Sequence[PolicyDraft],
    sources: Sequence[SourceDocument],
    heading: str,
    unknown_models: tuple[str, ...] = (),
) -> ImportResult:
    """What the drafts come to, read again by the loader of policies."""
    kept = list(drafts)
    text = ""
    while kept:
        written = draft_lines(kept, heading)
        text = lines_text(written)
        try:
            load_contents({_FILE: text.encode()})
            break
        except PolicyErrors as errors:
            before = len(written)
            kept = _without(kept, written, errors)
            if len(draft_lines(kept, heading)) >= before:
                # Each round takes something away, or there is a mistake in this module.
                raise AssertionError(str(errors.exceptions[0])) from errors
    remarks = sorted(remark for source in sources for remark in source.remarks())
    return ImportResult(text=text if kept else "", remarks=tuple(remarks), unknown_models=unknown_models)


def _without(drafts: list[PolicyDraft], written: Sequence[DraftLine], errors: PolicyErrors) -> list[PolicyDraft]:
    """The drafts without what the loader complains of; one statement for each complaint."""
    units: dict[tuple[int, tuple[Step, ...]], str] = {}
    for error in errors.exceptions:
        if isinstance(error, PolicyError) and 0 < error.origin.line <= len(written):
            line = written[error.origin.line - 1]
            if line.draft is not None:
                unit = (id(line.draft), _unit(line.draft, line.steps))
                units.setdefault(unit, _reason(error))
    by_id = {id(draft): draft for draft in drafts}
    gone: set[int] = set()
    # From the back, so that numbers of list items stay what they are.
    for (which, steps), why in sorted(units.items(), key=lambda one: _order(one[0][1]), reverse=True):
        draft = by_id[which]
        nodes = list(draft.nodes(steps)) if steps else []
        for node in nodes or [draft.node]:
            node.refuse(why if steps else f"{draft.kind} {draft.name} omitted: {why}")
        if not steps or not draft.drop(steps):
            gone.add(which)
    return [draft for draft in drafts if id(draft) not in gone]


def _order(steps: tuple[Step, ...]) -> tuple[tuple[bool, int, str], ...]:
    return tuple((isinstance(one, int), one if isinstance(one, int) else 0, str(one)) for one in steps)


def _reason(error: PolicyError) -> str:
    allowed = f" (allowed: {error.allowed})" if error.allowed else ""
    return f"{error.path}: {error.message}{allowed}" if error.path else f"{error.message}{allowed}"


def _unit(draft: PolicyDraft, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The smallest statement around a field that may be left out alone; empty: the whole document."""
    if steps[:1] != ("spec",) or len(steps) == 1:
        return ()
    if draft.kind == "ModelRoute" and steps[1] in _WHOLE:
        return ()
    if draft.kind == "ResiliencePolicy" and steps[1] == "pools":
        return ()
    model = KINDS[draft.kind]
    while steps:
        known = field_at(model, steps)
        if isinstance(steps[-1], int) or known is None or not known.required:
            return steps if len(steps) > 1 and steps != _TLS else ()
        steps = steps[:-1]
        if isinstance(steps[-1], int):
            return steps
    return ()


Translator = Callable[[Sequence[SourceDocument]], tuple[tuple[PolicyDraft, ...], str]]
"""Documents of another tool to drafts and the heading of the file; what is not understood it tells the sources."""
