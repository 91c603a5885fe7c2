"""``switchgear-chaos get``: scenarios and faults as a list."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from chaos.cli.error_output import print_errors
from chaos.cli.fault_text import chosen_faults, default_text, fault_record, fault_summary
from chaos.cli.resource_names import ResourceType, complete_resources, resource_names
from chaos.cli.scenario_text import scenario_record
from chaos.scenario.scenario_library import chosen_scenarios, scenario_library, scenarios_labelled
from command_line.output_format import DATA, OutputForm, as_data, list_output_option, show_custom_columns
from command_line.selector import Selector, selector_option
from command_line.table import Role, TableColumn, show_table
from policies.findings import PolicyErrors
from policies.quantity import format_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """Columns, the last ``wide`` for ``-o wide`` only, and rows: cells, names, documents, selectable fields."""

    columns: tuple[TableColumn, ...]
    wide: int
    cells: Sequence[tuple[str, ...]]
    names: Sequence[str]
    documents: Sequence[Any]
    fields: Sequence[Mapping[str, Any]]

    def selected(self, selector: Selector) -> "_Listing":
        """The rows that match; ``UsageError`` for a field that no row has."""
        known = {key for fields in self.fields for key in fields}
        for key in sorted(selector.keys - known):
            raise click.UsageError(f"-l: no field {key!r}; fields: {', '.join(sorted(known))}")
        kept = [at for at, fields in enumerate(self.fields) if selector.matches(fields)]
        return _Listing(
            columns=self.columns,
            wide=self.wide,
            cells=[self.cells[at] for at in kept],
            names=[self.names[at] for at in kept],
            documents=[self.documents[at] for at in kept],
            fields=[self.fields[at] for at in kept],
        )


@click.command(name="get")
@click.argument("words", nargs=-1, required=True, metavar="TYPE [NAME]...", shell_complete=complete_resources)
@selector_option("suite=standard,faults in (hang,freeze)")
@list_output_option()
def command(words: tuple[str, ...], selector: Selector, output: OutputForm, no_headers: bool) -> int:
    """List scenarios or faults: `get scenarios`, `get scenario quick mine.yaml`, `get fault/hang`.

    TYPE is scenarios (scenario, sc) or faults (fault, fl). A scenario's NAME is one of the library, a file or a
    folder. Table formats: table, wide, name, custom-columns; -o json and yaml print every field.

    Exit code: 0, or 2 for an unknown name or an invalid file, with every problem and its location.
    """
    kind, names = resource_names(words)
    try:
        listing = _scenarios(names) if kind is ResourceType.SCENARIOS else _faults(names)
    except PolicyErrors as errors:
        return print_errors(errors)
    listing = listing.selected(selector)
    if output in DATA:
        click.echo(as_data({kind.plural: listing.documents}, output), nl=False)
    elif output == "name":
        for name in listing.names:
            click.echo(f"{kind.singular}/{name}")
    elif output == "custom-columns":
        show_custom_columns(output, listing.documents, headers=not no_headers)
    else:
        count = len(listing.columns) - (0 if output == "wide" else listing.wide)
        show_table(listing.columns[:count], [row[:count] for row in listing.cells], headers=not no_headers)
    return 0


def _scenarios(names: Sequence[str]) -> _Listing:
    found = chosen_scenarios(names) if names else tuple(scenario_library().values())
    specs = [one.scenario.spec for one in found]
    return _Listing(
        columns=(
            TableColumn(title="name", role=Role.IDENTITY),
            TableColumn(title="duration"),
            TableColumn(title="suite"),
            TableColumn(title="title", role=Role.FREE),
            TableColumn(title="load"),
            TableColumn(title="faults", role=Role.FREE),
            TableColumn(title="incident", role=Role.FREE),
        ),
        wide=3,
        cells=[
            (
                one.name,
                format_duration(spec.lasts),
                scenarios_labelled(one) or "-",
                spec.title,
                f"{spec.load.percent:g}%",
                ",".join(dict.fromkeys(strike.fault.kind for strike in spec.faults)),
                spec.incident.strip(),
            )
            for one, spec in zip(found, specs, strict=True)
        ],
        names=[one.name for one in found],
        documents=[scenario_record(one) for one in found],
        fields=[
            {
                **one.scenario.metadata.labels,
                "name": one.name,
                "suite": scenarios_labelled(one),
                "faults": [strike.fault.kind for strike in spec.faults],
            }
            for one, spec in zip(found, specs, strict=True)
        ],
    )


def _faults(names: Sequence[str]) -> _Listing:
    found = chosen_faults(names)
    return _Listing(
        columns=(
            TableColumn(title="name", role=Role.IDENTITY),
            TableColumn(title="target"),
            TableColumn(title="description", role=Role.FREE),
            TableColumn(title="settings", role=Role.FREE),
            TableColumn(title="incident", role=Role.FREE),
        ),
        wide=2,
        cells=[
            (
                kind,
                fault.aim.value,
                fault_summary(fault),
                ", ".join(
                    f"{field.alias or name}={default_text(fault, name)}"
                    for name, field in fault.model_fields.items()
                    if name != "kind"
                )
                or "-",
                fault.incident or "-",
            )
            for kind, fault in found.items()
        ],
        names=list(found),
        documents=[fault_record(kind, fault) for kind, fault in found.items()],
        fields=[{"name": kind, "target": fault.aim.value} for kind, fault in found.items()],
    )
