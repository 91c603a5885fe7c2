"""Entry point of ``switchgear-chaos``, also as ``python -m chaos``."""

from command_line.interrupts import exit_on_interrupt


def entry() -> None:
    """The console script. Ctrl-C ends it quietly from here on, while the rest is imported too."""
    exit_on_interrupt()
    from chaos import cli  # noqa: PLC0415 - a Ctrl-C meanwhile shows no traceback

    cli.entry()


if __name__ == "__main__":
    entry()
