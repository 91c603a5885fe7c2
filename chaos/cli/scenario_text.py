"""Scenarios as text and as records, for ``get`` and ``describe``."""

from collections.abc import Mapping, Sequence
from typing import Any

from chaos.scenario.scenario_library import scenarios_labelled
from chaos.scenario.scenario_model import EngineGroupSpec, FaultSpec
from chaos.scenario.scenario_reader import LoadedScenario
from command_line.table import Role, TableColumn, table_lines
from policies.quantity import format_duration


def scenario_record(one: LoadedScenario) -> Mapping[str, Any]:
    """The scenario as a file, with every default."""
    record: Mapping[str, Any] = one.scenario.model_dump(mode="json", by_alias=True, exclude_none=True)
    return record


def scenario_description(one: LoadedScenario) -> str:
    """The scenario in full, for people."""
    spec = one.scenario.spec
    experiment = one.experiment()
    lines = [
        f"Name:      {one.name}",
        f"Title:     {spec.title}",
        f"Suite:     {scenarios_labelled(one) or '-'}",
        f"File:      {one.file}",
        f"Duration:  {format_duration(spec.lasts)}",
        f"Engines:   {_engines_text(spec.topology.engines)}",
        *(
            f"Fallback:  {number}: {_engines_text(one.engines)}"
            for number, one in enumerate(spec.topology.fallbacks)
        ),
        *([f"Prefill:   {_engines_text(spec.topology.prefill)}"] if spec.topology.prefill else []),
        f"Zones:     {', '.join(spec.topology.zones)}",
        *(f"Region:    {one.name}: {', '.join(one.zones)}" for one in spec.topology.regions),
        f"Load:      {spec.load.percent:g} % of capacity, {experiment.rate_per_s:.0f} requests/s",
        f"Incident:  {' '.join(spec.incident.split())}",
    ]
    columns = [
        TableColumn(title="name", role=Role.IDENTITY),
        TableColumn(title="fault"),
        TableColumn(title="target", role=Role.FREE),
        TableColumn(title="at"),
        TableColumn(title="duration"),
    ]
    faults = table_lines(columns, [_fault_row(strike) for strike in spec.faults])
    promises = {
        name: value
        for name, value in spec.hypothesis.model_dump(mode="json", by_alias=True, exclude_none=True).items()
        if value is not None
    }
    return "\n".join(
        (
            *lines,
            "Faults:" if spec.faults else "Faults:    -",
            *(f"  {line}" for line in (faults if spec.faults else ())),
            "Hypothesis:",
            *(f"  {name}: {value}" for name, value in promises.items()),
        )
    )


def _engines_text(groups: Sequence[EngineGroupSpec]) -> str:
    return ", ".join(f"{group.count} x {group.slots} slots" for group in groups)


def _fault_row(strike: FaultSpec) -> tuple[str, ...]:
    target = strike.target.model_dump(exclude_none=True, exclude_defaults=True)
    return (
        strike.name or "-",
        strike.fault.kind,
        ", ".join(
            f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in target.items()
        )
        or "all",
        format_duration(strike.at),
        "to the end" if strike.lasts is None else format_duration(strike.lasts),
    )
