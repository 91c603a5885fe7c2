"""Kinds of faults as text and as records, for ``get`` and ``describe``."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from chaos.export.litmus import why_not_in_litmus
from chaos.faults.fault import Fault
from chaos.scenario.scenario_schema import fault_kinds
from command_line.table import Role, TableColumn, table_lines
from policies.document import declaration
from policies.findings import did_you_mean
from policies.quantity import format_duration


def known_fault(kind: str) -> type[Fault]:
    """The fault of this kind; usage error with the nearest name if there is none."""
    known = fault_kinds()
    if kind not in known:
        hint = did_you_mean(kind, known) or "`switchgear-chaos get faults` lists them"
        raise click.UsageError(f"unknown fault {kind!r}: {hint}")
    return known[kind]


def chosen_faults(names: Sequence[str]) -> Mapping[str, type[Fault]]:
    """The faults of these kinds, in this order; all without names."""
    return {kind: known_fault(kind) for kind in names or fault_kinds()}


def fault_summary(fault: type[Fault]) -> str:
    """First paragraph of its description, on one line."""
    return " ".join((fault.__doc__ or "").strip().split("\n\n", maxsplit=1)[0].split())


def default_text(fault: type[Fault], name: str) -> str:
    """Default of a setting; ``(required)`` without one."""
    field = fault.model_fields[name]
    if field.is_required():
        return "(required)"
    value = field.get_default(call_default_factory=True)
    if declaration(field).unit == "duration" and isinstance(value, int | float):
        return format_duration(value)
    return json.dumps(value, default=str)


def fault_record(kind: str, fault: type[Fault]) -> Mapping[str, Any]:
    """The fault as JSON."""
    return {
        "name": kind,
        "target": fault.aim.value,
        "description": fault_summary(fault),
        "incident": fault.incident,
        "schema": fault.model_json_schema(by_alias=True),
    }


def fault_description(kind: str, fault: type[Fault]) -> str:
    """The fault in full, for people."""
    why_not = why_not_in_litmus(fault)
    lines = [
        f"Name:        {kind}",
        f"Targets:     {fault.aim.value}",
        f"Description: {fault_summary(fault)}",
        f"Incident:    {fault.incident or '-'}",
        f"Chaos Mesh:  {f'no: {fault.not_in_clusters}' if fault.not_in_clusters else 'yes'}",
        f"Litmus:      {f'no: {fault.not_in_clusters or why_not}' if fault.not_in_clusters or why_not else 'yes'}",
    ]
    settings = [
        (field.alias or name, default_text(fault, name), field.description or "")
        for name, field in fault.model_fields.items()
        if name != "kind"
    ]
    if not settings:
        return "\n".join([*lines, "Settings:    -"])
    columns = [
        TableColumn(title="name", role=Role.IDENTITY),
        TableColumn(title="default"),
        TableColumn(title="description", role=Role.FREE),
    ]
    return "\n".join([*lines, "Settings:", *(f"  {line}" for line in table_lines(columns, settings))])
