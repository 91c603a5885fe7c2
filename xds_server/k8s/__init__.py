"""Talking to a Kubernetes API server: the connection, requests, lists that stay true, and the lease."""
