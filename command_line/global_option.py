"""Options that every command of a program takes and only ``PROGRAM options`` lists."""

from collections.abc import Collection

import click


class GlobalOption(click.Option):
    """An option that a command takes and completes, and that its ``--help`` leaves out."""

    def get_help_record(self, ctx: click.Context) -> None:
        """None: it is not in the help of a command."""

    def global_help_record(self, context: click.Context) -> tuple[str, str]:
        """Flags and help for the list of global options."""
        return super().get_help_record(context) or ("", "")


def global_options_hint(context: click.Context) -> str:
    """The last line of a command's help."""
    return f'Use "{context.find_root().info_name} options" for global options.'


def refuse_global_options(context: click.Context, command: click.Command, accepted: Collection[str]) -> None:
    """Usage error where global options were given before a command that takes none of them."""
    if any(isinstance(one, GlobalOption) for one in command.params):
        return
    root = context.find_root()
    for option in root.command.params:
        given = root.get_parameter_source(option.name or "") is click.core.ParameterSource.COMMANDLINE
        if isinstance(option, GlobalOption) and given and option.name not in accepted:
            raise click.UsageError(_talks_to_no_server(f"{context.command_path} {command.name}", option.opts[0]))


def explained(error: click.ClickException) -> click.ClickException:
    """The error, with its fix: a global option where no server is asked, or a policy path without ``-f``."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return error
    known = {
        flag for one in context.find_root().command.params if isinstance(one, GlobalOption) for flag in one.opts
    }
    if isinstance(error, click.NoSuchOption) and error.option_name in known:
        return click.UsageError(_talks_to_no_server(context.command_path, error.option_name), context)
    by_file = next((one for one in context.command.params if "-f" in one.opts), None)
    if by_file is None:
        return error
    what = "policies" if isinstance(by_file, click.Option) and "olic" in (by_file.help or "") else "files"
    if error.message.startswith("Got unexpected extra argument"):
        return click.UsageError(f"{error.message}; give {what} by -f PATH", context)
    if isinstance(error, click.MissingParameter) and error.param is by_file:
        return click.UsageError(f"give {what} by -f PATH", context)
    return error


def _talks_to_no_server(command: str, option: str) -> str:
    return f"`{command}` talks to no server: remove the global option {option}"
