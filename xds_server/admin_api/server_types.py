"""The server process, and what each connected proxy reports of its own build."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """The file system that the state folder is on."""

    folder: str
    total_bytes: int
    free_bytes: int
    writable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyInfo:
    """The build of a proxy. ``lacks`` are missing extensions, None where it lists none (a gRPC client)."""

    node: str
    user_agent: str = ""
    version: str = ""
    lacks: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """The process. ``now_unix_s`` is its clock at the moment of the answer.

    ``gated_pools`` are pools with ``firstTokenGate``, ``tls_pools`` pools with ``tls`` (None from an older
    server). ``listen`` is the configured xDS address; port 0 means any free port.
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
