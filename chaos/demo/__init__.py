"""The demo: the same faults and arrivals behind Switchgear and behind plain Envoy."""
