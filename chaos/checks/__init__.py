"""Judgements on a history: pure functions that answer yes, no or unknown, and why."""
