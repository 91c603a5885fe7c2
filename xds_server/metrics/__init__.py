"""Metrics: each declared once, with its help and what to do about it, and the server's registry of them."""
