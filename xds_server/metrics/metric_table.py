"""Every metric that ``serve`` may expose, by chapter and by name.

Alert rules, dashboards and ``docs/metrics.md`` are made from it. A test compares it with a running server, both
ways.
"""

from collections.abc import Mapping
from typing import Final

from xds_server.metrics.control_metrics import (
    ControlPlaneMetrics,
    ProcessMetrics,
    ProxyMetrics,
    TelemetryMetrics,
)
from xds_server.metrics.fleet_metrics import CallerMetrics, EngineMetrics, PoolMetrics
from xds_server.metrics.metric_spec import MetricChapter, MetricSpec

CHAPTERS: Final[tuple[type[MetricChapter], ...]] = (
    CallerMetrics,
    EngineMetrics,
    PoolMetrics,
    ProxyMetrics,
    TelemetryMetrics,
    ControlPlaneMetrics,
    ProcessMetrics,
)
TABLE: Final[Mapping[str, MetricSpec]] = {one.name: one for chapter in CHAPTERS for one in chapter.specs()}
