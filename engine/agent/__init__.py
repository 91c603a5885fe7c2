"""The agent next to an engine: reports its verdict and drains it."""
