"""Run a click group to an exit code, whatever ends it: usage error, Ctrl-C, full disk, closed pipe."""

import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import Final

import click

from command_line.global_option import explained
from command_line.interrupts import INTERRUPTED, exit_on_interrupt, raise_on_interrupt

USAGE_ERROR: Final = 2

_DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def run_group(group: click.Group, argv: Sequence[str], name: str) -> int:
    """Run one subcommand of ``group``, the program ``name``, and return its exit code."""
    stdout = sys.stdout
    try:
        answer = group.main(args=list(argv), prog_name=name, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return USAGE_ERROR
    except click.ClickException as error:
        explained(error).show()
        return USAGE_ERROR
    except (click.exceptions.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except (SystemExit, BrokenPipeError) as error:
        # The reader (head, less) is done: click replaces stdout and exits with 1.
        if isinstance(error, SystemExit) and sys.stdout is stdout:
            raise
        _detach_stdout()
        return 0
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        _detach_stdout()
        click.echo(f"Error: cannot write the output: {error.strerror}", err=True)
        return USAGE_ERROR
    return answer if isinstance(answer, int) else 0


def run_program(group: click.Group, name: str) -> None:
    """Run the program ``name`` with the arguments of this process, and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character gets a question mark instead of a traceback.
            stream.reconfigure(errors="replace")
    raise_on_interrupt()
    try:
        code = run_group(group, sys.argv[1:], name)
    finally:
        exit_on_interrupt()
    sys.exit(code)


def _detach_stdout() -> None:
    """Send stdout to /dev/null: Python flushes at exit, and would raise again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
