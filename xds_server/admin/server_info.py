"""Data about the server process and the connected proxies' builds."""

import os
import platform
import resource
import shutil
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Final

from policies.route import ModelRoute
from xds_server.admin_api.server_types import DiskSpace, ProxyInfo, ServerInfo
from xds_server.translate.strict_sessions import is_strict
from xds_server.xds import NodeInfo

LIBRARIES: Final = ("switchgear", "envoy-data-plane", "grpcio", "protobuf", "aiohttp", "pydantic")
"""Libraries whose versions affect the served resources."""

NEEDED_EXTENSIONS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "gateway": (
            "envoy.access_loggers.http_grpc",
            "envoy.access_loggers.stdout",
            "envoy.filters.http.lua",
            "envoy.filters.http.router",
            "envoy.filters.http.set_filter_state",
            "envoy.filters.network.http_connection_manager",
            "envoy.formatter.req_without_query",
            "envoy.http.early_header_mutation.header_mutation",
            "envoy.retry_host_predicates.previous_hosts",
            "envoy.transport_sockets.tls",
        ),
        "cuts": (
            "envoy.bootstrap.internal_listener",
            "envoy.filters.listener.original_dst",
            "envoy.filters.network.tcp_proxy",
            "envoy.transport_sockets.internal_upstream",
            "envoy.transport_sockets.raw_buffer",
        ),
        "accessLogFile": ("envoy.access_loggers.file",),
        "accessLogCollector": ("envoy.access_loggers.open_telemetry",),
        "jwt": ("envoy.filters.http.jwt_authn",),
        "extAuth": ("envoy.filters.http.ext_authz",),
        "tenants": ("envoy.filters.http.local_ratelimit", "envoy.filters.http.header_mutation"),
        "affinity": ("envoy.filters.http.stateful_session", "envoy.http.stateful_session.header"),
        "prefill": ("envoy.filters.http.header_mutation", "envoy.filters.http.upstream_codec"),
    }
)
"""Envoy extensions used by the served resources; those of ``cuts`` only for proxies that can cut requests.

The other names are fields of routes and their listeners, whose extensions are required where one sets them; those
of ``affinity`` only for strict sessions. A test compares this with the golden cases. TLS and the operator's access
log are always required: an edit may enable them at any time, too late to discover that a proxy lacks them.
"""


def server_info(
    now_unix_s: float,
    *,
    state_dir: Path | None,
    listen: str,
    gated_pools: Iterable[str],
    tls_pools: Iterable[str] = (),
    routes: Iterable[ModelRoute] = (),
    nodes: Iterable[NodeInfo],
) -> ServerInfo:
    """Current process data."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    used = optional_extensions(routes)
    return ServerInfo(
        python=platform.python_version(),
        libraries=libraries(),
        platform=platform.platform(),
        now_unix_s=now_unix_s,
        open_files=_open_files(),
        open_files_limit=None if limit == resource.RLIM_INFINITY else limit,
        disk=None if state_dir is None else _disk(state_dir),
        listen=listen,
        gated_pools=tuple(sorted(gated_pools)),
        tls_pools=tuple(sorted(tls_pools)),
        proxies=tuple(proxy_info(node, used) for node in nodes),
    )


def optional_extensions(routes: Iterable[ModelRoute]) -> tuple[str, ...]:
    """Extensions that only these routes require."""
    set_fields: set[str] = set()
    for route in routes:
        set_fields |= route.spec.listener.model_dump(by_alias=True, exclude_none=True).keys()
        set_fields |= {"affinity"} if is_strict(route) else set()
        set_fields |= {"prefill"} if route.spec.prefill is not None else set()
    return tuple(name for field, names in NEEDED_EXTENSIONS.items() if field in set_fields for name in names)


def proxy_info(node: NodeInfo, optional: Iterable[str] = ()) -> ProxyInfo:
    """Build of a proxy, and the required extensions it lacks, ``optional`` among them."""
    return ProxyInfo(
        node=node.id,
        user_agent=node.user_agent_name,
        version=node.user_agent_version,
        lacks=missing_extensions(node, optional),
    )


def missing_extensions(node: NodeInfo, optional: Iterable[str] = ()) -> tuple[str, ...] | None:
    """Required extensions that a proxy lacks; None if it does not list its extensions."""
    if not node.extensions:
        return None
    needed = NEEDED_EXTENSIONS["gateway"]
    if node.metadata.get("cuts"):
        needed = (*needed, *NEEDED_EXTENSIONS["cuts"])
    return tuple(name for name in (*needed, *optional) if name not in node.extensions)


@cache
def libraries() -> Mapping[str, str]:
    """Versions by distribution; empty if not installed as a package."""
    return {name: _version(name) for name in LIBRARIES}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _open_files() -> int | None:
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count of names, no paths
    except OSError:
        return None  # no /proc: not Linux


def _disk(folder: Path) -> DiskSpace | None:
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return DiskSpace(folder=str(folder), total_bytes=0, free_bytes=0, writable=False)
    return DiskSpace(
        folder=str(folder),
        total_bytes=usage.total,
        free_bytes=usage.free,
        writable=os.access(folder, os.W_OK | os.X_OK),
    )
