"""``python -m chaos.cli`` is ``switchgear-chaos``."""

from chaos.__main__ import entry

entry()
