"""A click group that imports a subcommand when it runs, and adds subcommands of installed packages.

``switchgear validate`` must answer in an editor's save hook, so it may not pay for other subcommands' imports.
Packages above the control plane name their subcommands as entry points. These are read only for ``--help`` and
for names that the group does not have itself.
"""

import difflib
import importlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from command_line.global_option import GlobalOption, global_options_hint, refuse_global_options

_OTHER_TOOLS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "dump": "config-dump",
        "events": "get events",
        "logs": "get events",
        "lint": "validate",
        "analyze": "validate",
        "proxy-config": "config-dump",
        "proxy-status": "status",
        "cluster-info": "status",
        "cordon": "drain",
        "uncordon": "restore",
        "undrain": "restore",
        "uneject": "restore",
        "undo": "rollback",
        "rollout": "history",
        "api-resources": "get",
        "scenarios": "get scenarios",
        "faults": "get faults",
        "report": "status",
    }
)
"""Commands of kubectl, istioctl and earlier versions, and what to type instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LazyCommand:
    """Where a subcommand is defined, and its line in ``--help`` (kept here so that help imports nothing)."""

    module: str
    summary: str
    name: str = "command"


class LazyGroup(click.Group):
    """A group that knows its subcommands by name and imports one when it is called.

    ``plugged`` is the entry point group of further subcommands. ``--help`` imports their modules, so these should
    import little. ``accepted`` names global options that commands take although they talk to no server.
    """

    def __init__(
        self, *, entries: Mapping[str, LazyCommand], plugged: str = "", accepted: Collection[str] = (), **rest: Any
    ) -> None:
        super().__init__(**rest)
        self._accepted = accepted
        self._entries = entries
        self._plugged = plugged

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return [*self._entries, *(one.name for one in self._further())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = self._load(cmd_name)
        if command is not None and any(isinstance(one, GlobalOption) for one in command.params):
            command.epilog = command.epilog or global_options_hint(ctx)
        return command

    def _load(self, name: str) -> click.Command | None:
        entry = self._entries.get(name)
        command: click.Command
        if entry is not None:
            command = getattr(importlib.import_module(entry.module), entry.name)
            return command
        for one in self._further():
            if one.name == name:
                command = one.load()
                return command
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """click's own; an unknown name is refused with the one that was probably meant."""
        try:
            found = super().resolve_command(ctx, args)
        except click.UsageError as error:
            name = args[0]
            meant = _OTHER_TOOLS.get(name, "")
            if meant.split(" ")[0] not in self._entries:
                near = difflib.get_close_matches(name, self.list_commands(ctx), n=1, cutoff=0.6)
                meant = near[0] if near else ""
            if not meant:
                raise
            message = f"{error.message.rstrip('.')}: did you mean `{ctx.command_path} {meant}`?"
            raise click.UsageError(message, ctx) from error
        if found[1] is not None and not isinstance(found[1], click.Group) and not ctx.resilient_parsing:
            refuse_global_options(ctx, found[1], self._accepted)
        return found

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names that start with ``incomplete``. click's own would import every subcommand at each key."""
        known = {name: entry.summary for name, entry in self._entries.items()}
        known |= {one.name: "" for one in self._further()}
        return [
            *(CompletionItem(name, help=text) for name, text in known.items() if name.startswith(incomplete)),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        lines = [(name, entry.summary) for name, entry in self._entries.items()]
        for one in self._further():
            command: click.Command = one.load()
            lines.append((one.name, command.get_short_help_str(limit=formatter.width)))
        with formatter.section("Commands"):
            formatter.write_dl(lines)

    def _further(self) -> list[EntryPoint]:
        if not self._plugged:
            return []
        found = {one.name: one for one in entry_points(group=self._plugged) if one.name not in self._entries}
        return [found[name] for name in sorted(found)]
