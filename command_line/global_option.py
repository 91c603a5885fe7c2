"""Options that every command of a program takes and only ``PROGRAM options`` lists."""

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
