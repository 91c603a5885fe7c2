"""``python -m chaos.cli``."""

from chaos.cli import entry

entry()
