"""``switchgear-agent status``: the verdict of a running agent, and its evidence."""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from command_line.output_format import DATA, OutputForm, as_data, output_option
from command_line.wrapping import wrapped
from engine.agent.cli.agent_client import AgentClient, NoAgentError, agent_options, duration


@click.command(name="status")
@agent_options
@output_option()
@click.option("--watch", "-w", is_flag=True, help="Keep running, and print the status at each change.")
@click.option(
    "--interval",
    "interval_s",
    type=duration,
    metavar="DURATION",
    default="1s",
    show_default=True,
    help="Poll interval of --watch.",
)
def command(client: AgentClient, output: OutputForm, watch: bool, interval_s: float) -> int:
    """Show the verdict of a running agent, and its evidence.

    Exit code: 0 the engine is ready, 1 it is not, 2 usage error or no agent.
    """
    answer = client.request("GET", "/report")
    _print(answer, output, following=watch)
    if not watch:
        return 0 if _ready(answer) else 1
    shown, trouble = _state(answer), ""
    while True:
        time.sleep(max(0.1, interval_s))
        try:
            answer = client.request("GET", "/report")
        except NoAgentError as error:
            if trouble != error.message:
                trouble = error.message
                click.echo(f"Error: {trouble}", err=True)
            continue
        if _state(answer) != shown or trouble:
            shown, trouble = _state(answer), ""
            _print(answer, output, following=True)


def _print(answer: Mapping[str, Any], output: OutputForm, *, following: bool) -> None:
    if output == "json" and following:
        click.echo(json.dumps(answer, ensure_ascii=False))
    elif output in DATA:
        separator = "---\n" if following and output == "yaml" else ""
        click.echo(f"{separator}{as_data(answer, output)}", nl=False)
    else:
        click.echo(wrapped("\n".join(status_lines(answer))) + ("\n" if following else ""))


def _ready(answer: Mapping[str, Any]) -> bool:
    return bool((answer.get("ready") or {}).get("yes"))


def _state(answer: Mapping[str, Any]) -> tuple[Any, ...]:
    """What --watch takes for a change: the verdict, the probes, and a drain."""
    probes = (answer.get(name) or {} for name in ("ready", "alive", "started"))
    return (answer.get("verdict"), answer.get("drain") is not None, *(one.get("yes") for one in probes))


def status_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """The answer for people."""
    if not answer.get("verdict"):
        yield "Verdict:    none yet: the agent has not finished its first probes"
        return
    yield f"Verdict:    {answer['verdict']} for {_seconds(answer.get('since_s'))}"
    yield f"Evidence:   {answer.get('evidence') or '-'}"
    if answer.get("doubt"):
        yield f"Doubt:      {answer['doubt']}"
    if answer.get("model"):
        yield f"Model:      {answer['model']}"
    slots = f" of {answer['slots']} slots" if answer.get("slots") else ""
    yield (
        f"Load:       {_count(answer.get('requests_in_flight'))} in flight{slots}, "
        f"{_count(answer.get('requests_waiting'))} waiting, "
        f"KV cache {_percent(answer.get('kv_cache_usage_ratio'))}"
    )
    if answer.get("count_is_partial"):
        yield "            several API processes: in flight is the larger of one process's count and /metrics"
    for core in answer.get("orphaned_cores") or ():
        yield f"Orphaned:   {core.get('sentence', '-')}"
    drain = answer.get("drain")
    if drain is not None:
        left = drain.get("deadline_in_s")
        yield f"Draining:   {'without a deadline' if left is None else f'deadline in {_seconds(left)}'}"
    for name, path in (("ready", "/readyz"), ("alive", "/livez"), ("started", "/startupz")):
        probe = answer.get(name) or {}
        yield f"{path + ':':<11} {'yes' if probe.get('yes') else 'no'}: {probe.get('sentence', '-')}"
    recent = answer.get("last_30_s") or {}
    if recent:
        yield f"Last 30 s:  {', '.join(f'{value} {name}' for name, value in recent.items())}"
    gpu = answer.get("gpu") or {}
    if gpu.get("statement"):
        yield f"GPUs:       {gpu['statement']}"


def _seconds(value: Any) -> str:
    return "an unknown time" if value is None else f"{value:.1f} s" if value < 60 else f"{value / 60:.0f} min"


def _count(value: Any) -> str:
    return "unknown" if value is None else str(value)


def _percent(value: Any) -> str:
    return "unknown" if value is None else f"{100 * value:.0f} %"
