"""Decisions about the fleet: pure functions of policies, fleet and time, each with its reason."""
