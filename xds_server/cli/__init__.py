"""The ``switchgear`` command: one module per subcommand, imported only when that subcommand runs.

``switchgear validate`` must answer in an editor's save hook, so it may not pay for gRPC and Envoy's messages.
Exit codes: 0 yes, 1 the answer is no, 2 usage error or no server, 130 Ctrl-C. Answers go to stdout, remarks to
stderr.
"""

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import click

from command_line.group_runner import run_group, run_program
from command_line.lazy_group import LazyCommand, LazyGroup
from xds_server.cli.connection_options import global_options
from xds_server.cli.light_messages import allow_light_messages


def _entry(module: str, summary: str, name: str = "command") -> LazyCommand:
    return LazyCommand(module=f"{__name__}.{module}", summary=summary, name=name)


_COMMANDS: Final[Mapping[str, LazyCommand]] = MappingProxyType(
    {
        "status": _entry("status", "Show proxies, policies and engines, and what is wrong."),
        "why": _entry("why", "Explain the current state of an engine, zone or pool."),
        "get": _entry("get", "List engines, pools, zones, proxies, orders, events and more."),
        "describe": _entry("describe", "Show the details of one engine, pool, zone or proxy."),
        "top": _entry("top", "Watch pools, engines and proxies in the terminal."),
        "tap": _entry("tap", "Watch requests as they end: refused, slow, failed, or all."),
        "eject": _entry("orders", "Remove an engine from rotation temporarily.", name="eject"),
        "drain": _entry("orders", "Stop sending new requests to an engine temporarily.", name="drain"),
        "degrade": _entry("orders", "Hold a pool at a degradation level temporarily.", name="degrade"),
        "restore": _entry("orders", "End an operator order, or keep an engine in rotation.", name="restore"),
        "validate": _entry("validate", "Validate policy files; report every problem with its location and a fix."),
        "convert": _entry("convert", "Rewrite policy files to another apiVersion; keep comments and layout."),
        "diff": _entry("diff", "Show what new policies would change."),
        "history": _entry("history", "List policy versions, or show what differs between two."),
        "apply": _entry("apply", "Apply policies to the running server."),
        "rollback": _entry("rollback", "Roll back to an earlier policy version."),
        "release": _entry("release", "Serve an edit that is held back because it removes too much."),
        "explain": _entry("explain", "Explain a field or code; with files, show its effective value and origin."),
        "translate": _entry("translate", "Print the Envoy resources that a proxy would get."),
        "replay": _entry("replay", "Replay a recording under other policies."),
        "schema": _entry("schema", "Print the JSON Schema of policy files, for editors."),
        "config-dump": _entry("config_dump", "Show a proxy's intended configuration, or how Envoy's differs."),
        "serve": _entry("serve", "Run the control plane."),
        "doctor": _entry("doctor", "Check a server and its surroundings; show a fix for each fault."),
        "bug-report": _entry("bug_report", "Collect a redacted diagnostics bundle."),
        "bootstrap": _entry("bootstrap", "Print an Envoy bootstrap that connects to this server."),
        "config": _entry("config", "Manage contexts: named servers and how to reach them."),
        "options": _entry("options", "List the global options."),
        "completion": _entry("completion", "Print the completion script for a shell."),
        "certs": _entry("certs", "Make temporary certificates for labs."),
        "version": _entry("version", "Show the version of this command and of the server."),
    }
)


@click.group(
    cls=LazyGroup,
    entries=_COMMANDS,
    plugged="switchgear.commands",
    params=global_options(),
    epilog='Use "switchgear options" for global options.',
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="switchgear", prog_name="switchgear")
def group() -> None:
    """Keep a fleet of vLLM engines serving, through Envoy, from policy files."""


def main(argv: Sequence[str]) -> int:
    """Run one subcommand and return its exit code: 0 yes, 1 the answer is no, 2 usage error or no server."""
    return run_group(group, argv, "switchgear")


def entry() -> None:
    """The console script, without the guard of ``xds_server.__main__`` against Ctrl-C while importing."""
    # gRPC's core writes a line to stderr for every peer that hangs up; it reads this when imported.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    allow_light_messages()
    run_program(group, "switchgear")
