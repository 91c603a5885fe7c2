"""Fleets in simulated time: the real control plane decisions with simulated engines and proxies."""
