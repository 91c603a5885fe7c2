"""What a fault hits."""

from enum import StrEnum


class TargetKind(StrEnum):
    """What a fault hits. A target's zone, number, fraction and count pick among all of that sort."""

    ENGINES = "engines"
    PROXIES = "proxies"
    CONTROL_PLANE = "control-plane"
    CLIENTS = "clients"
    ZONES = "zones"
    """Engines and proxies both; its targets are named one by one."""
