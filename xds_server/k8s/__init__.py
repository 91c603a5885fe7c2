"""Client for the Kubernetes API: connection, requests, reflectors, and the lease."""
