"""Entry point of ``python -m xds_server``, same as ``switchgear``."""

from xds_server.cli import entry

entry()
