"""The demonstration: the same faults, the same arrivals, once behind Switchgear and once behind plain Envoy."""
