"""The metrics of the control plane, documented: what docs, alerts and dashboards are made from."""
