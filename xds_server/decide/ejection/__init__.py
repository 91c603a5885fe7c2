"""Who takes requests: five askers that may want an engine out, weighed by one governor."""
