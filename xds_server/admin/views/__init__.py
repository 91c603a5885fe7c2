"""Views of the ledger and the fleet for people: why, events, tables."""
