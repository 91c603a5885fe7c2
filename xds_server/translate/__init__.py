"""Translates policies, fleet and decisions into Envoy configuration, one module per resource kind."""
