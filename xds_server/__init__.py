"""The control plane: policies and what engines report, turned into xDS for Envoy."""
