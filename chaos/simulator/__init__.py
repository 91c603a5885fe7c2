"""Fleets in simulated time: the control plane's own decisions, in front of engines and proxies that are values."""
