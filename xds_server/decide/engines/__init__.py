"""Who takes requests: four askers that may want an engine out, weighed by one governor."""
