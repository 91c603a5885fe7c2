"""``switchgear-chaos describe``: one scenario or fault in detail."""

import click

from chaos.cli.error_output import print_errors
from chaos.cli.fault_text import chosen_faults, fault_description, fault_record
from chaos.cli.resource_names import ResourceType, complete_resources, resource_names
from chaos.cli.scenario_text import scenario_description, scenario_record
from chaos.scenario.scenario_library import chosen_scenarios
from command_line.output_format import DATA, OutputForm, as_data, output_option
from command_line.wrapping import wrapped
from policies.findings import PolicyErrors


@click.command(name="describe")
@click.argument("words", nargs=-1, required=True, metavar="TYPE NAME...", shell_complete=complete_resources)
@output_option()
def command(words: tuple[str, ...], output: OutputForm) -> int:
    """Show scenarios or faults in detail: `describe scenario quick`, `describe fault/hang`.

    TYPE is scenario (sc) or fault (fl). A scenario's NAME is one of the library, a file or a folder. -o yaml
    prints a scenario as a file to start from.

    Exit code: 0, or 2 for an unknown name or an invalid file.
    """
    kind, names = resource_names(words)
    if not names:
        raise click.UsageError(f"missing NAME; `switchgear-chaos get {kind.plural}` lists them")
    try:
        if kind is ResourceType.SCENARIOS:
            scenarios = chosen_scenarios(names)
            documents = [scenario_record(one) for one in scenarios]
            texts = [scenario_description(one) for one in scenarios]
        else:
            faults = chosen_faults(names)
            documents = [fault_record(name, fault) for name, fault in faults.items()]
            texts = [fault_description(name, fault) for name, fault in faults.items()]
    except PolicyErrors as errors:
        return print_errors(errors)
    if output in DATA:
        answer = documents[0] if len(documents) == 1 else {kind.plural: documents}
        click.echo(as_data(answer, output), nl=False)
    else:
        click.echo(wrapped("\n\n".join(texts)))
    return 0
