"""Measurements of the control plane itself: ejection latency, pushes, traces."""
