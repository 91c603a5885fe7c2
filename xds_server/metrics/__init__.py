"""Declarations of all metrics, with help and remedy, and the server's registry."""
