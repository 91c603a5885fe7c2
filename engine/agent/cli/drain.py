"""``switchgear-agent drain`` and ``undrain``: for operators, and for a ``preStop`` hook."""

import click

from command_line.output_format import DATA, OutputForm, as_data, output_option
from engine.agent.cli.agent_client import AgentClient, agent_options, duration
from engine.report import LONGEST_DRAIN_S


@click.command(name="drain")
@agent_options
@click.option(
    "--deadline",
    "deadline_s",
    type=duration,
    metavar="DURATION",
    help="Give up after this time; the engine keeps draining. Default: drain.deadline of the pool.",
)
@output_option()
def drain(client: AgentClient, deadline_s: float | None, output: OutputForm) -> int:
    """Remove the engine from rotation and wait until it is empty.

    Returns when no proxy sends requests and none is in flight, or at the deadline. For a preStop hook.

    Exit code: 0 drained, 1 not drained in time or undrained meanwhile, 2 usage error or no agent.
    """
    path = "/drain" if deadline_s is None else f"/drain?deadline={deadline_s * 1000:.0f}ms"
    answer = client.request("POST", path, wait_s=LONGEST_DRAIN_S if deadline_s is None else deadline_s)
    click.echo(as_data(answer, output) if output in DATA else f"{answer.get('sentence', '')}\n", nl=False)
    return 0 if answer.get("outcome") == "drained" else 1


@click.command(name="undrain")
@agent_options
@output_option()
def undrain(client: AgentClient, output: OutputForm) -> int:
    """Return a draining engine to rotation.

    Exit code: 0, also if it was not draining; 2 usage error or no agent.
    """
    answer = client.request("POST", "/undrain")
    text = "The engine returns to rotation.\n" if answer.get("was_draining") else "The engine was not draining.\n"
    click.echo(as_data(answer, output) if output in DATA else text, nl=False)
    return 0
