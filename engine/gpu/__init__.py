"""GPU health of an engine: read, remember, judge."""
