"""Writes status, events and readiness gates to the cluster; leader only."""
