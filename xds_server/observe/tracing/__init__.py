"""Traces: each change that reaches proxies, from what caused it to the last request it stopped."""
