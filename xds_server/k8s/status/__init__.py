"""What is written back to the cluster: status, events, readiness gates; by whoever holds the lease alone."""
