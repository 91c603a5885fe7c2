"""``switchgear config``: contexts, which are named servers and how to reach them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from command_line.lazy_group import LazyCommand, LazyGroup
from command_line.output_format import DATA, as_data, list_output_option, output_option, show_custom_columns
from command_line.table import Role, TableColumn, show_table
from xds_server.cli.connection_options import Timeout, context_file, context_name, global_options
from xds_server.cli.context_file import FIELDS, PATHS, ContextFile

_COLUMNS: Final = (
    TableColumn(title="current"),
    TableColumn(title="name", role=Role.IDENTITY),
    TableColumn(title="server", role=Role.IDENTITY),
)


def _entry(name: str, summary: str) -> LazyCommand:
    return LazyCommand(module=__name__, summary=summary, name=name)


_COMMANDS: Final = {
    "view": _entry("view", "Print the context file."),
    "get-contexts": _entry("get_contexts", "List the contexts."),
    "current-context": _entry("current_context", "Print the name of the current context."),
    "use-context": _entry("use_context", "Make a context the current one."),
    "set-context": _entry("set_context", "Add a context, or change some of its fields."),
    "delete-context": _entry("delete_context", "Remove a context."),
}


@click.group(name="config", cls=LazyGroup, entries=_COMMANDS, accepted=("config", "context"))
def command() -> None:
    """Manage contexts: named servers and how to reach them.

    The file is ~/.config/switchgear/config.yaml, or that of --config or SWITCHGEAR_CONFIG. Flags and environment
    variables win over the current context; --context NAME wins over environment variables.
    """


def _complete(context: click.Context, _parameter: click.Parameter, begin: str) -> list[CompletionItem]:
    try:
        with context.scope(cleanup=False):
            return [CompletionItem(name) for name in context_file().contexts if name.startswith(begin)]
    except click.ClickException:
        return []


def _file() -> ContextFile:
    """The context file in force."""
    found: ContextFile = context_file()
    return found


_NAME: Final = click.argument("name", shell_complete=_complete)


@click.command(name="view")
@output_option("yaml", "json", "jsonpath")
def view(output: str) -> int:
    """Print the context file. Tokens and keys are not in it, only the names of their files."""
    click.echo(as_data(_file().document(), output), nl=False)
    return 0


@click.command(name="get-contexts")
@click.argument("names", nargs=-1, metavar="[NAME ...]", shell_complete=_complete)
@list_output_option("table", "name", "json", "yaml", "jsonpath", "custom-columns")
def get_contexts(names: tuple[str, ...], output: Any, no_headers: bool) -> int:
    """List the contexts; * marks the current one.

    Exit code: 0, or 2 when there is no such context.
    """
    file = _file()
    shown = {name: file.context(name) for name in (names or file.contexts)}
    documents = [
        {"name": name, "current": name == file.current, "context": dict(fields)} for name, fields in shown.items()
    ]
    if output in DATA:
        click.echo(as_data({"contexts": documents}, output), nl=False)
    elif output == "custom-columns":
        show_custom_columns(output, documents, headers=not no_headers)
    elif output == "name":
        click.echo("".join(f"{name}\n" for name in shown), nl=False)
    elif not shown:
        click.echo(f"no contexts in {file.path}; add one with `switchgear config set-context`", err=True)
    else:
        rows = [
            ("*" if name == file.current else "", name, fields.get("server", "")) for name, fields in shown.items()
        ]
        show_table(_COLUMNS, rows, headers=not no_headers)
    return 0


@click.command(name="current-context")
def current_context() -> int:
    """Print the name of the current context.

    Exit code: 0, 1 when none is set.
    """
    name = context_name()
    if not name:
        click.echo("no current context; choose one with `switchgear config use-context NAME`", err=True)
        return 1
    click.echo(name)
    return 0


@click.command(name="use-context")
@_NAME
def use_context(name: str) -> int:
    """Make NAME the current context.

    Exit code: 0, or 2 when there is no such context.
    """
    file = _file()
    file.context(name)
    ContextFile(path=file.path, current=name, contexts=file.contexts).write()
    click.echo(f"Switched to context {name}.")
    return 0


def _fields(command: Callable[..., Any]) -> Callable[..., Any]:
    """One option for each field, named as the global options are."""
    helps = {option.name: option.help or "" for option in global_options() if isinstance(option, click.Option)}
    for field, name in reversed(tuple(FIELDS.items())):
        kind = Timeout() if field == "timeout" else None
        command = click.option(
            f"--{name.replace('_', '-')}",
            name,
            metavar="FILE" if field in PATHS else "DURATION" if kind else "URL" if name == "admin" else "NAME",
            callback=_checked(kind),
            help=helps[name].partition("  [")[0],
        )(command)
    return command


def _checked(
    kind: click.ParamType[Any] | None,
) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """Check a value and keep it as it was written."""

    def check(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
        if value and kind:
            kind.convert(value, option, context)
        return value

    return check


@click.command(name="set-context")
@_NAME
@_fields
def set_context(name: str, **values: str | None) -> int:
    """Add the context NAME, or change the fields that are given; an empty value removes a field.

    The first context becomes the current one.

    Exit code: 0, or 2 when the file cannot be written.
    """
    file = _file()
    fields = dict(file.contexts.get(name, {}))
    for field, option in FIELDS.items():
        value = values[option]
        if value is not None:
            fields[field] = str(Path(value).expanduser().absolute()) if value and field in PATHS else value
    fields = {field: value for field, value in fields.items() if value}
    if "server" not in fields:
        raise click.UsageError(f"context {name!r} has no server; add --admin URL")
    added = name not in file.contexts
    contexts = {**file.contexts, name: fields}
    ContextFile(path=file.path, current=file.current or name, contexts=contexts).write()
    click.echo(f"{'Added' if added else 'Changed'} context {name}.")
    return 0


@click.command(name="delete-context")
@_NAME
def delete_context(name: str) -> int:
    """Remove the context NAME.

    Exit code: 0, or 2 when there is no such context.
    """
    file = _file()
    file.context(name)
    contexts = {one: fields for one, fields in file.contexts.items() if one != name}
    was_current = file.current == name
    ContextFile(path=file.path, current="" if was_current else file.current, contexts=contexts).write()
    click.echo(f"Deleted context {name}.")
    if was_current:
        click.echo(
            "It was the current context: choose another with `switchgear config use-context NAME`.", err=True
        )
    return 0
