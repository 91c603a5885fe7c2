"""Engine health: reports of agents, probes, and addresses of engines."""
