"""Checks of a history: pure functions that return yes, no or unknown, with the reason."""
