"""``PROGRAM completion SHELL``: the completion script, the same for every program."""

from typing import Final

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

_SHELLS: Final[dict[str, type[ShellComplete]]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


def completion_variable(program: str) -> str:
    """Environment variable by which the script asks the program, as click derives it from the name."""
    return f"_{program}_COMPLETE".replace("-", "_").upper()


def completion_command(program: str, names: str = "") -> click.Command:
    """The ``completion`` command of a program. ``names``: a sentence on the names it completes."""
    lines = {
        "bash": f'eval "$({program} completion bash)"   in ~/.bashrc',
        "zsh": f'eval "$({program} completion zsh)"    in ~/.zshrc, after compinit',
        "fish": f"{program} completion fish > ~/.config/fish/completions/{program}.fish",
    }

    def print_script(shell: str) -> int:
        # click's own ``source`` would start bash to check its version; the reader of the script has their shell.
        script = _SHELLS[shell](click.Group(), {}, program, completion_variable(program))
        # Only the first comma ends the kind: descriptions have commas too.
        text = (script.source_template % script.source_vars()).replace('string split ","', 'string split -m 1 ","')
        # `#compdef` has to be the first line of a file in zsh's fpath.
        click.echo(f"{text.strip()}\n\n# {lines[shell]}")
        return 0

    install = "\n".join(f"{shell + ':':<6} {line}" for shell, line in lines.items())
    text = f"Print the script that completes commands, options and files in SHELL.\n\n\b\n{install}\n"
    return click.Command(
        "completion",
        callback=print_script,
        params=[click.Argument(["shell"], type=click.Choice(list(_SHELLS)))],
        help=f"{text}\n{names}" if names else text,
        short_help="Print the completion script for a shell.",
    )
