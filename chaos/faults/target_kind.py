"""Kinds of fault targets."""

from enum import StrEnum


class TargetKind(StrEnum):
    """What a fault hits. The target's zone, index, fraction and count select among all of that kind."""

    ENGINES = "engines"
    PROXIES = "proxies"
    CONTROL_PLANE = "control-plane"
    CLIENTS = "clients"
    ZONES = "zones"
    """Engines and proxies of a zone; targets are listed one by one."""
