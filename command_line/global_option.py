"""Options that every command of a program takes and only ``PROGRAM options`` lists."""

from collections.abc import Sequence
from typing import Any

import click


class GlobalOption(click.Option):
    """An option that ``--help`` of a command leaves out."""

    def __init__(self, param_decls: Sequence[str], **settings: Any) -> None:
        super().__init__(param_decls, hidden=True, **settings)


def global_options_hint(context: click.Context) -> str:
    """The last line of a command's help."""
    return f'Use "{context.find_root().info_name} options" for global options.'


def option_record(option: click.Option, context: click.Context) -> tuple[str, str]:
    """Flags and help of a hidden option, as ``--help`` would show them."""
    option.hidden = False
    try:
        return option.get_help_record(context) or ("", "")
    finally:
        option.hidden = True
