"""A click group that imports a subcommand when it runs, and takes further ones from installed packages.

``switchgear validate`` must answer in an editor's save hook, so it may not pay for what other subcommands need.
What builds on the control plane is not known to it: such a package names its subcommands as entry points, and they
are looked for only where no subcommand of our own was asked for, and for ``--help``.
"""

import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Final

import click
from click.shell_completion import CompletionItem

_ELSEWHERE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "describe": "why",
        "dump": "config-dump",
        "events": "get events",
        "logs": "get events",
        "lint": "validate",
        "analyze": "validate",
        "proxy-config": "config-dump",
        "proxy-status": "status",
        "uncordon": "restore",
        "undrain": "restore",
        "uneject": "restore",
        "undo": "rollback",
    }
)
"""What fingers type that know kubectl and istioctl, and what it is called here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LazyCommand:
    """Where a subcommand lives, and its line in ``--help`` (kept here so that help imports nothing)."""

    module: str
    summary: str
    name: str = "command"


class LazyGroup(click.Group):
    """A group that knows its subcommands by name and imports one when it is called.

    ``plugged`` is the group of entry points that hold further ones. Their modules are imported for their line in
    ``--help``, so they should import little before they run.
    """

    def __init__(self, *, entries: Mapping[str, LazyCommand], plugged: str = "", **rest: object) -> None:
        super().__init__(**rest)  # type: ignore[arg-type]  # click's own keywords, handed on as they came
        self._entries = entries
        self._plugged = plugged

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return [*self._entries, *(one.name for one in self._further())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - the same
        entry = self._entries.get(cmd_name)
        command: click.Command
        if entry is not None:
            command = getattr(importlib.import_module(entry.module), entry.name)
            return command
        for one in self._further():
            if one.name == cmd_name:
                command = one.load()
                return command
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """click's own; an unknown name is refused with the one that was probably meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            name = args[0]
            near = difflib.get_close_matches(name, self.list_commands(ctx), n=1, cutoff=0.7)
            meant = _ELSEWHERE.get(name, "") if _ELSEWHERE.get(name, "").split(" ")[0] in self._entries else ""
            if not (meant or near):
                raise
            said = f"{error.message.rstrip('.')}: did you mean `{ctx.info_name} {meant or near[0]}`?"
            raise click.UsageError(said, ctx) from error

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names that fit. click's own would import every subcommand, at each key, for its line of help."""
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
