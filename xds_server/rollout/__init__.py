"""Rollout of policies: their source, versions, canaries, and progress."""
