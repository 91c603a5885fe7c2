"""The ``switchgear`` command: one module per subcommand, imported only when that subcommand runs.

``switchgear validate`` must answer in an editor's save hook, so it may not pay for gRPC and Envoy's messages.
Exit codes: 0 yes, 1 the answer is no, 2 asked wrongly. Answers go to stdout, remarks to stderr.
"""

import io
import os
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import click

from xds_server.cli.group_runner import run_group
from xds_server.cli.lazy_group import LazyCommand, LazyGroup
from xds_server.cli.light_messages import allow_light_messages


def _entry(module: str, summary: str, name: str = "command") -> LazyCommand:
    return LazyCommand(module=f"{__name__}.{module}", summary=summary, name=name)


_COMMANDS: Final[Mapping[str, LazyCommand]] = MappingProxyType(
    {
        "status": _entry("status", "Show each proxy and whether it has what it should."),
        "why": _entry("why", "Say why an engine, a zone or a pool is as it is."),
        "get": _entry("get", "Show engines, pools, zones, proxies, orders, events, audit or shadow."),
        "top": _entry("top", "Watch pools, engines and proxies in the terminal."),
        "eject": _entry("orders", "Take an engine out, for a time.", name="eject"),
        "drain": _entry("orders", "Give an engine nothing new, for a time.", name="drain"),
        "restore": _entry("orders", "End an order, or order an engine in.", name="restore"),
        "validate": _entry("validate", "Judge policy files: every problem, with its place and a way out."),
        "diff": _entry("diff", "Show what other policies would change."),
        "history": _entry("history", "Show the versions of the policies, or what differs between two."),
        "apply": _entry("apply", "Have other policies served."),
        "rollback": _entry("rollback", "Have an earlier version of the policies served again."),
        "explain": _entry("explain", "Explain a field or a code; with files, who set it to what."),
        "translate": _entry("translate", "Print the exact Envoy resources a proxy would get."),
        "replay": _entry("replay", "Decide a recording again, under other policies."),
        "schema": _entry("schema", "Print the JSON Schema of policy files, for editors."),
        "config-dump": _entry("config_dump", "Show what a proxy is meant to have, or how it differs."),
        "serve": _entry("serve", "Run the control plane."),
        "doctor": _entry("doctor", "Check everything around a server, with a way out for each fault."),
        "bug-report": _entry("bug_report", "Pack what somebody else needs to look at a fault, without secrets."),
        "bootstrap": _entry("bootstrap", "Print an Envoy bootstrap that connects here."),
        "completion": _entry("completion", "Print the script that completes commands in a shell."),
        "certs": _entry("certs", "Make throw-away certificates for labs."),
    }
)


@click.group(
    cls=LazyGroup,
    entries=_COMMANDS,
    plugged="switchgear.commands",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="switchgear", prog_name="switchgear")
def group() -> None:
    """Keep a fleet of vLLM engines serving, through Envoy, from policy files."""


def main(argv: Sequence[str]) -> int:
    """Run one subcommand and return its exit code: 0 yes, 1 the answer is no, 2 asked wrongly."""
    return run_group(group, argv, "switchgear")


def entry() -> None:
    """The console script."""
    # gRPC's core writes a line of its own form to stderr for every peer that hangs up; it asks when imported.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character gets a question mark: better than no answer at all.
            stream.reconfigure(errors="replace")
    allow_light_messages()
    sys.exit(main(sys.argv[1:]))
