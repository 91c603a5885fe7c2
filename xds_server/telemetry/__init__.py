"""Telemetry from proxies: access logs and load reports, as one frozen value per pool."""

from xds_server.telemetry.proxy_telemetry import Telemetry

__all__ = ("Telemetry",)
