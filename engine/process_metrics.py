"""Process and version metrics."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector

CONTROL_PLANE: Final = "control-plane"
AGENT: Final = "agent"
BUILD_INFO_HELP: Final = "1, by part and version of Switchgear."


def add_process(registry: CollectorRegistry, component: str) -> None:
    """Register ``process_*`` (needs ``/proc``) and ``switchgear_build_info``."""
    ProcessCollector(registry=registry)
    build = Gauge(
        "switchgear_build_info",
        BUILD_INFO_HELP,
        ["component", "version"],
        registry=registry,
    )
    build.labels(component=component, version=program_version()).set(1)


def program_version() -> str:
    """Version of Switchgear; empty if not installed as a package."""
    try:
        return version("switchgear")
    except PackageNotFoundError:
        return ""
