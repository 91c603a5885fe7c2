"""Routing of admitted requests: hedging, retries, time limits, weights of engines, zones and regions."""
