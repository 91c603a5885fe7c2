"""Metrics: each declared once, with its help and what to do about it, and the server's registry of them."""

from xds_server.metrics.metric_registry import Metrics

__all__ = ["Metrics"]
