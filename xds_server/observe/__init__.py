"""What is measured of the control plane's own work: ejection latency, pushes, traces."""
