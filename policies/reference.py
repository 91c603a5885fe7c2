"""Text made from the models and the table of codes: the commented defaults, and the two reference pages.

Files in the repository hold what these functions return; a test compares them.
"""

import json
import textwrap
from collections.abc import Iterator
from typing import Any, Final

from policies.codes import CODES, REMARKS
from policies.codes.code import Code
from policies.document import API_VERSION
from policies.model import KINDS
from policies.resilience import DEFAULT
from policies.schema import FieldDoc, fields

_WIDTH: Final = 110

_DEFAULTS_HEAD: Final = f"""\
# Everything a ResiliencePolicy can say, with the built-in default, its unit and the reason for it.
#
# Made from the models by `switchgear explain --defaults`; a test keeps it in step. Switchgear does not read this
# file: the defaults are built in. Copy the lines you want to change into a policy of your own: named default, it
# is for every pool; with another name, for the pools it lists.
apiVersion: {API_VERSION}
kind: ResiliencePolicy
metadata:
  name: {DEFAULT}
spec:
"""


_TAKES_EFFECT: Final = (
    "*Takes effect by* names the xDS resources that an edit may change, at once or through the decisions it",
    "leads to. Without *cold* the edit is hot: requests in flight, counts and ejections survive. A cold edit",
    "can change a cluster, which forgets its counts and ejections, or a listener, which ends its streams",
    "([Hot and cold](architecture.md#hot-and-cold)). A dash: proxies receive nothing of it. What one edit",
    "changes in your policies, `switchgear diff` shows.",
)


def yaml_value(value: Any) -> str:
    """A default as it stands in a policy file."""
    if isinstance(value, list):
        return "[" + ", ".join(yaml_value(one) for one in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {yaml_value(one)}" for name, one in value.items()) + "}"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, str):
        # Names, durations and addresses stand without quotes; nothing else is a default today.
        return value if value and all(one.isalnum() or one in "-._/" for one in value) else json.dumps(value)
    return json.dumps(value)


def defaults_yaml() -> str:
    """The policy named ``default`` that changes nothing, with every field explained."""
    lines: list[str] = []
    for one in fields("ResiliencePolicy").values():
        if not one.path.startswith("spec.") or one.path == "spec.pools":
            continue
        depth = one.path.count(".")
        indent = "  " * depth
        if one.block and depth == 1:
            lines.append("")
        lines += _comment(one, indent)
        name = one.path.rpartition(".")[2]
        lines.append(f"{indent}{name}:" if one.block else f"{indent}{name}: {yaml_value(one.default)}")
    return _DEFAULTS_HEAD + "\n".join(lines).lstrip("\n") + "\n"


def _comment(one: FieldDoc, indent: str) -> list[str]:
    parts = [one.description]
    if not one.block:
        unit = "" if one.unit in {"", "duration"} else f" {one.unit}"
        parts.append(f"Takes {one.allowed}{unit}.")
    text = " ".join(parts)
    lines = textwrap.wrap(text, _WIDTH - len(indent) - 2, break_long_words=False)
    if one.why:
        lines += textwrap.wrap(f"Why: {one.why}.", _WIDTH - len(indent) - 2, break_long_words=False)
    return [f"{indent}# {line}" for line in lines]


def policies_markdown() -> str:
    """Reference of every field of every kind."""
    return "\n".join(_policy_lines()) + "\n"


def _policy_lines() -> Iterator[str]:
    yield "# Policy reference"
    yield ""
    yield "Made from the models by `switchgear explain --reference`; a test keeps it in step. A field at"
    yield "a time: `switchgear explain limits.maxWait`. Durations are written `250ms`, `2s`, `15m`, `1m30s`."
    yield ""
    yield from _TAKES_EFFECT
    for kind, model in KINDS.items():
        yield ""
        yield f"## {kind}"
        yield ""
        spec = model.model_fields["spec"].annotation
        yield (spec.__doc__ or "") if spec is not None else ""
        yield ""
        yield "| field | default | takes | takes effect by | what it is |"
        yield "|---|---|---|---|---|"
        for one in fields(kind).values():
            why = f" *Why: {one.why}.*" if one.why else ""
            name = f"**{one.path}**" if one.block else f"`{one.path}`"
            yield row(name, default_text(one), one.allowed, _live(one), f"{one.description}{why}")


def _live(one: FieldDoc) -> str:
    """The resources that an edit of the field may change; empty for a block, a dash where there is none."""
    if not one.holds_value or one.targets is None:
        return ""
    live = one.targets.live
    return (f"{live}, cold" if live.cold else str(live)) or "-"


def row(*cells: str) -> str:
    """One row of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def default_text(one: FieldDoc) -> str:
    """The default in words: ``required``, ``none`` where nothing is set, or the value."""
    if one.required:
        return "required"
    if one.block:
        return ""
    return "none" if one.default is None else f"`{yaml_value(one.default)}`"


def codes_markdown() -> str:
    """Reference of every code."""
    head = (
        "# Codes\n\n"
        "What Switchgear says, by code; made by `switchgear explain --codes`, kept in step by a test.\n"
        "At a terminal: `switchgear explain SG031`. Codes are stable. SG0xx are errors: the files are refused,\n"
        "and what runs goes on as it was. SG1xx is advice: valid, but it will hurt; `--strict` makes it fail.\n"
        "SG2xx is about what runs: `switchgear status`, `why`, `doctor`, `config-dump`.\n\n"
        "Examples leave out `apiVersion` and `metadata` where they do not matter.\n"
    )
    sections = [head]
    for title, wanted in (("Errors", True), ("Advice", False)):
        sections.append(f"\n## {title}\n")
        sections += [code_markdown(one) for one in CODES.values() if one.is_error is wanted]
    sections.append("\n## Operating\n")
    sections += [code_markdown(one) for one in REMARKS.values()]
    return "".join(sections)


def code_markdown(one: Code) -> str:
    """One code as a section."""
    example = f"```yaml\n{_shortened(one.example)}```\n" if one.example else f"Example: {one.situation}.\n"
    return f"\n### {one.code}: {one.title}\n\n{one.meaning}\n\n{example}\nFix: {one.fix}\n"


def _shortened(example: str) -> str:
    """Lines of an example, cut where a hundred repetitions make the point."""
    return "".join(
        line if len(line) <= _WIDTH + 20 else f"{line[:_WIDTH]} ...\n"
        for line in example.splitlines(keepends=True)
    )
