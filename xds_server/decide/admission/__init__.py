"""How much is let in: what engines can do, how far service is degraded, and whose part of the ceiling is whose."""
