"""Transitions between two rounds, as values for the ledger."""
