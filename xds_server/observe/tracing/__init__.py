"""Traces of changes, from their cause through the proxies to the last request they stopped."""
