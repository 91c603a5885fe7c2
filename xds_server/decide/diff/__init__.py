"""What became of whom between two rounds: transitions as values, for the ledger."""
