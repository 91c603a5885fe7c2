"""Pure checks and views of a running system, for troubleshooting."""
