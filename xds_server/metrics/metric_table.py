"""All metrics that ``serve`` may expose, by chapter and by name.

Source of alert rules, dashboards and ``docs/metrics.md``; a test compares it with a running server in both
directions.
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
