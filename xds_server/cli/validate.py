"""``switchgear validate``: judge policy files without a cluster or a server."""

import json
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from policies.codes import CODES
from policies.findings import PolicyErrors
from policies.lints.lint import lint
from policies.load import load_found
from policies.model import PolicySet
from policies.policy_files import read, read_from, search
from xds_server.cli.diagnostics import SHOWN, Diagnostic, as_text, from_errors, from_findings
from xds_server.model.text import count_text

_STDIN: Final = Path("-")
_SARIF_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"


@click.command(name="validate")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--output", "-o", type=click.Choice(["text", "json", "sarif"]), default="text", help="Form of the answer."
)
@click.option("--strict", is_flag=True, help="Advice (SG1xx) fails too.")
@click.option("--all", "everything", is_flag=True, help=f"Show all, not the first {SHOWN}.")
def command(paths: tuple[Path, ...], output: str, strict: bool, everything: bool) -> int:
    """Judge the policy files and folders PATHS, - for standard input: every problem, with its place and a way out.

    Exits 0 when they can be used, 1 when there are problems (with --strict also for advice), 2 for a wrong path.
    """
    policies: PolicySet | None = None
    try:
        policies = _loaded(paths)
        complaints = from_findings(lint(policies))
    except PolicyErrors as errors:
        complaints = from_errors(errors)
    match output:
        case "json":
            click.echo(json.dumps(_record(policies, complaints), indent=2))
        case "sarif":
            click.echo(json.dumps(sarif(complaints), indent=2))
        case _:
            text = as_text(complaints, most=len(complaints) if everything else SHOWN)
            click.echo((f"{text}\n\n" if text else "") + _summary(policies, complaints))
    if policies is None:
        asked = {str(path) for path in paths}
        wrong = all(one.code == "SG001" and one.origin and one.origin.file in asked for one in complaints)
        return 2 if wrong else 1
    return 1 if strict and complaints else 0


def _loaded(paths: tuple[Path, ...]) -> PolicySet:
    """The policies of these; raises ``PolicyErrors`` as ``load`` does."""
    found = search([path for path in paths if path != _STDIN])
    contents = {path: read(path) for path in found.files}
    if _STDIN in paths:
        if sys.stdin is None:
            raise click.UsageError("- is for standard input, and there is none")
        contents[Path("<stdin>")] = read_from(sys.stdin.buffer)
    return load_found(found, contents, paths)


def _summary(policies: PolicySet | None, complaints: Sequence[Diagnostic]) -> str:
    if policies is None:
        files = len({one.origin.file for one in complaints if one.origin})
        return click.style(
            f"{count_text(len(complaints), 'error')} in {count_text(files, 'file')}", fg="red", bold=True
        )
    what = ", ".join(
        (
            count_text(len(policies.pools), "pool"),
            count_text(len(policies.routes), "route"),
            count_text(len(policies.policies), "policy"),
        )
    )
    colour = "yellow" if complaints else "green"
    return click.style(f"valid: {what}; {count_text(len(complaints), 'warning')}", fg=colour, bold=True)


def _record(policies: PolicySet | None, complaints: Sequence[Diagnostic]) -> Mapping[str, Any]:
    return {
        "valid": policies is not None,
        "pools": sorted(policies.pools) if policies else [],
        "routes": sorted(policies.routes) if policies else [],
        "policies": sorted(policies.policies) if policies else [],
        "errors": [one.record() for one in complaints if one.level == "error"],
        "warnings": [one.record() for one in complaints if one.level == "warning"],
    }


def sarif(complaints: Sequence[Diagnostic]) -> Mapping[str, Any]:
    """The complaints as SARIF 2.1.0, which code hosts show beside the lines of a change.

    Source: OASIS, Static Analysis Results Interchange Format 2.1.0.
    """
    used = sorted({one.code for one in complaints})
    return {
        "$schema": _SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "switchgear",
                        "version": version("switchgear"),
                        "rules": [_rule(code) for code in used],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "results": [_result(one, used.index(one.code)) for one in complaints],
            }
        ],
    }


def _rule(code: str) -> Mapping[str, Any]:
    known = CODES[code]
    return {
        "id": code,
        "shortDescription": {"text": known.title},
        "fullDescription": {"text": known.meaning},
        "help": {"text": known.fix},
        "defaultConfiguration": {"level": "error" if known.is_error else "warning"},
    }


def _result(one: Diagnostic, rule: int) -> Mapping[str, Any]:
    text = f"{one.path}: {one.message}" if one.path else one.message
    result: dict[str, Any] = {
        "ruleId": one.code,
        "ruleIndex": rule,
        "level": one.level,
        "message": {"text": f"{text}. {one.hint}" if one.hint else text},
    }
    if one.origin is not None:
        place: dict[str, Any] = {"artifactLocation": {"uri": _uri(one.origin.file)}}
        if one.origin.line:
            place["region"] = {"startLine": one.origin.line, "startColumn": max(one.origin.column, 1)}
        result["locations"] = [{"physicalLocation": place}]
    return result


def _uri(file: str) -> str:
    path = Path(file)
    return path.as_uri() if path.is_absolute() else quote(path.as_posix(), errors="surrogateescape")
