"""Types for the server process and the builds of connected proxies."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """File system of the state folder."""

    folder: str
    total_bytes: int
    free_bytes: int
    writable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyInfo:
    """Build of a proxy. ``lacks``: missing extensions, None if it lists none (a gRPC client)."""

    node: str
    user_agent: str = ""
    version: str = ""
    lacks: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """The process. ``now_unix_s``: its clock when answering.

    ``gated_pools``: pools with ``firstTokenGate``. ``tls_pools``: pools with ``tls`` (None from an older server).
    ``listen``: configured xDS address; port 0 means any free port.
    """

    python: str
    libraries: Mapping[str, str]
    platform: str
    now_unix_s: float
    open_files: int | None = None
    open_files_limit: int | None = None
    disk: DiskSpace | None = None
    listen: str
    gated_pools: tuple[str, ...]
    tls_pools: tuple[str, ...] | None = None
    proxies: tuple[ProxyInfo, ...] = ()
