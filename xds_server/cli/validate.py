"""``switchgear validate``: check policy files, without a cluster or a server."""

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from command_line.output_format import DATA, TEXT_FORMS, as_data, output_option
from policies.codes import CODES
from policies.findings import Finding, PolicyErrors
from policies.lints.lint import lint
from policies.model import PolicySet
from xds_server.cli.diagnostics import SHOWN, Diagnostic, Level, as_text, from_errors, from_findings
from xds_server.cli.policies_option import load_policies, policies_option
from xds_server.model.text import count_text

PLAYS: Final = "switchgear.plays"
"""Entry points that play a ``PolicySet`` and return findings, and the pools not played with the reason."""

_SARIF_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"


@click.command(name="validate")
@policies_option(required=True)
@output_option(*TEXT_FORMS, "sarif")
@click.option("--strict", is_flag=True, help="Exit 1 for warnings (SG1xx) too; notes are none.")
@click.option("--deep", is_flag=True, help="Play the policies in the simulator too; report consequences.")
@click.option("--all", "everything", is_flag=True, help=f"Show every problem, not only the first {SHOWN}.")
def command(filename: tuple[Path, ...], output: str, strict: bool, deep: bool, everything: bool) -> int:
    """Validate policy files; report every problem with its location and a fix.

    --deep plays each pool under full load, with a bad caller, a hung engine and a restart. It takes up to 10 s.

    Exit code: 0 valid, 1 problems found (with --strict also warnings), 2 wrong path.
    """
    policies: PolicySet | None = None
    unplayed: Mapping[str, str] = {}
    try:
        policies = load_policies(filename)
        diagnostics = from_findings(lint(policies))
        if deep:
            found, unplayed = _consequences(policies)
            diagnostics = (*diagnostics, *from_findings(found))
        diagnostics = (*diagnostics, *from_findings(policies.notes))
    except PolicyErrors as errors:
        diagnostics = from_errors(errors)
    match output:
        case "sarif":
            click.echo(json.dumps(sarif(diagnostics), indent=2))
        case _ if output in DATA:
            click.echo(
                as_data({**_record(policies, diagnostics), **({"unplayed": unplayed} if deep else {})}, output),
                nl=False,
            )
        case _:
            text = as_text(diagnostics, most=len(diagnostics) if everything else SHOWN)
            click.echo((f"{text}\n\n" if text else "") + _summary(policies, diagnostics))
            for pool, reason in unplayed.items():
                click.echo(f"pool {pool} was not played: {reason}", err=True)
    if policies is None:
        given = {str(path) for path in filename}
        wrong = all(one.code == "SG001" and one.origin and one.origin.file in given for one in diagnostics)
        return 2 if wrong else 1
    return 1 if strict and _count(diagnostics, "warning") else 0


def _consequences(policies: PolicySet) -> tuple[tuple[Finding, ...], Mapping[str, str]]:
    """What playing the policies finds, and the pools not played with the reason."""
    # The simulator is above the control plane, which does not know it.
    plays = entry_points(group=PLAYS)
    if not plays:
        raise click.ClickException("no simulator installed: reinstall Switchgear from its checkout or wheel")
    found: tuple[Finding, ...] = ()
    unplayed: dict[str, str] = {}
    for one in plays:
        more, left = one.load()(policies)
        found, unplayed = (*found, *more), {**unplayed, **left}
    return found, unplayed


def _summary(policies: PolicySet | None, diagnostics: Sequence[Diagnostic]) -> str:
    if policies is None:
        files = len({one.origin.file for one in diagnostics if one.origin})
        return click.style(
            f"{count_text(len(diagnostics), 'error')} in {count_text(files, 'file')}", fg="red", bold=True
        )
    what = ", ".join(
        (
            count_text(len(policies.pools), "pool"),
            count_text(len(policies.routes), "route"),
            count_text(len(policies.policies), "policy"),
        )
    )
    warnings = _count(diagnostics, "warning")
    colour = "yellow" if warnings else "green"
    return click.style(f"valid: {what}; {count_text(warnings, 'warning')}", fg=colour, bold=True)


def _count(diagnostics: Sequence[Diagnostic], level: Level) -> int:
    return sum(one.level == level for one in diagnostics)


def _record(policies: PolicySet | None, diagnostics: Sequence[Diagnostic]) -> Mapping[str, Any]:
    return {
        "valid": policies is not None,
        "pools": sorted(policies.pools) if policies else [],
        "routes": sorted(policies.routes) if policies else [],
        "policies": sorted(policies.policies) if policies else [],
        "errors": [one.record() for one in diagnostics if one.level == "error"],
        "warnings": [one.record() for one in diagnostics if one.level == "warning"],
        "notes": [one.record() for one in diagnostics if one.level == "note"],
    }


def sarif(diagnostics: Sequence[Diagnostic]) -> Mapping[str, Any]:
    """The diagnostics as SARIF 2.1.0, which code hosts show at the lines of a change.

    Source: OASIS, Static Analysis Results Interchange Format 2.1.0.
    """
    used = sorted({one.code for one in diagnostics})
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
                "results": [_result(one, used.index(one.code)) for one in diagnostics],
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
        "defaultConfiguration": {"level": known.level},
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
