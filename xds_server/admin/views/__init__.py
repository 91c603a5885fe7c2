"""Operator views of ledger and fleet: explanations, events, tables."""
