"""Judgements on a running system for whoever looks for a fault: pure, from what was gathered elsewhere."""
