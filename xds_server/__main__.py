"""``python -m xds_server`` is ``switchgear``."""

from xds_server.cli import entry

entry()
