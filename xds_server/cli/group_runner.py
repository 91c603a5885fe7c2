"""A group of subcommands run to its exit code, whatever ends it: wrong usage, Ctrl-C, full disk, closed pipe."""

import errno
import os
import sys
from collections.abc import Sequence
from typing import Final

import click

USAGE_ERROR: Final = 2
INTERRUPTED: Final = 130  # 128 + SIGINT, as shells report it

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def run_group(group: click.Group, argv: Sequence[str], name: str) -> int:
    """Run one subcommand of ``group``, which is called ``name``, and return its exit code."""
    try:
        answer = group.main(args=list(argv), prog_name=name, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return USAGE_ERROR
    except click.ClickException as error:
        error.show()
        return USAGE_ERROR
    except (click.exceptions.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        _let_go_of_stdout()  # the reader (head, less) has seen enough
        return 0
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        _let_go_of_stdout()
        click.echo(f"Error: the answer cannot be written: {error.strerror}", err=True)
        return USAGE_ERROR
    return answer if isinstance(answer, int) else 0


def _let_go_of_stdout() -> None:
    """Python would complain once more when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
