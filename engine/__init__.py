"""Engine health: probes, verdicts and the agent."""
