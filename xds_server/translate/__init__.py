"""Policies, fleet and decisions as Envoy configuration: one module per kind of resource."""
