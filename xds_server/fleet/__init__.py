"""The engines as they stand: what policies declare of them, and what reports, proxies and the orchestrator say."""

from xds_server.fleet.fleet import (
    Engine,
    EngineId,
    Fleet,
    declared,
    fleet_of,
    redeclared,
    with_report,
    with_traffic,
    with_words,
)

__all__ = (
    "Engine",
    "EngineId",
    "Fleet",
    "declared",
    "fleet_of",
    "redeclared",
    "with_report",
    "with_traffic",
    "with_words",
)
