"""Scenarios for clusters: the same faults as manifests of Chaos Mesh and Litmus, and what they lack."""
