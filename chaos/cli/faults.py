"""``switchgear-chaos faults``: the kinds of faults, whom each hits, and its settings."""

import json
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from chaos.faults.fault import Fault
from chaos.scenario.scenario_schema import fault_kinds
from policies.document import declaration
from policies.findings import did_you_mean
from policies.quantity import format_duration


@click.command(name="faults")
@click.argument("kinds", nargs=-1, metavar="[KIND]...")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(kinds: tuple[str, ...], as_json: bool) -> int:
    """List the kinds of faults; with KIND only those, each with its settings."""
    known = fault_kinds()
    for kind in kinds:
        if kind not in known:
            hint = did_you_mean(kind, known)
            raise click.ClickException(f"there is no fault {kind}{f': {hint}' if hint else ''}")
    some = {kind: known[kind] for kind in kinds or known}
    if as_json:
        click.echo(json.dumps([_record(kind, fault) for kind, fault in some.items()], indent=2))
        return 0
    table = Table(show_lines=bool(kinds))
    for name in ("fault", "hits", "what it is", "settings"):
        table.add_column(name, no_wrap=name == "fault")
    for kind, fault in some.items():
        table.add_row(kind, fault.aim.value, _story(fault), _settings(fault, full=bool(kinds)))
    Console().print(table)
    return 0


def _story(fault: type[Fault]) -> str:
    return (fault.__doc__ or "").strip().split("\n\n", maxsplit=1)[0].replace("\n    ", " ")


def _settings(fault: type[Fault], *, full: bool) -> str:
    lines = []
    for name, field in fault.model_fields.items():
        if name == "kind":
            continue
        said = f"{field.alias or name}: {_default(fault, name)}"
        lines.append(f"{said}  [dim]{field.description}[/dim]" if full else said)
    return "\n".join(lines)


def _default(fault: type[Fault], name: str) -> str:
    field = fault.model_fields[name]
    if field.is_required():
        return "(required)"
    value = field.get_default(call_default_factory=True)
    if declaration(field).unit == "duration" and isinstance(value, int | float):
        return format_duration(value)
    return json.dumps(value, default=str)


def _record(kind: str, fault: type[Fault]) -> Mapping[str, Any]:
    return {
        "kind": kind,
        "hits": fault.aim.value,
        "story": _story(fault),
        "incident": fault.incident,
        "schema": fault.model_json_schema(by_alias=True),
    }
