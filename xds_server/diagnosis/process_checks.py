"""Checks of versions, clocks, files and disks."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from xds_server.admin_api.server_types import DiskSpace, ProxyInfo, ServerInfo
from xds_server.diagnosis.check_result import Check, fail, ok, warn
from xds_server.model.software_version import parsed_version
from xds_server.model.text import count_text, names_text

LEAST: Final[Mapping[str, tuple[int, ...]]] = {
    "python": (3, 11),
    "envoy-data-plane": (2, 2),
    "grpcio": (1, 70),
    "protobuf": (7, 35, 1),
    "aiohttp": (3, 14),
    "pydantic": (2, 11),
}
"""Minimum versions of ``pyproject.toml``; a test keeps both equal."""

OLDEST_ENVOY: Final = (1, 36)
"""Oldest Envoy that the acceptance tests pass with (`make envoys`)."""

CLOCKS_MAY_DIFFER_S: Final = 3.0
"""A Date header has whole seconds, and a response takes time."""

FEW_FILES: Final = 0.8
LITTLE_DISK_BYTES: Final = 64 * 1024 * 1024
"""Room for both files of the state folder many times over, and for a while of the ledger."""


def on_versions(whose: str, python: str, libraries: Mapping[str, str]) -> Iterator[Check]:
    """Check that Python and the libraries of one process are new enough."""
    had = {"python": python, **libraries}
    old = [
        f"{name} {had[name] or 'missing'} (minimum {'.'.join(map(str, least))})"
        for name, least in LEAST.items()
        if name in had and parsed_version(had[name]) < least
    ]
    if old:
        yield fail(f"versions of {whose}", "SG231", f"too old: {names_text(old)}")
    else:
        told = ", ".join(f"{name} {had[name]}" for name in ("python", "envoy-data-plane", "grpcio") if name in had)
        yield ok(f"versions of {whose}", told)


def on_server_version(ours: str, theirs: str) -> Check:
    """Check that the command line and the server have the same version."""
    if ours != theirs:
        return warn(
            "version", "SG230", f"the command line is {ours or 'unknown'}, the server {theirs or 'unknown'}"
        )
    return ok("version", f"command line and server: {ours}")


def on_clock(whose: str, skew_s: float) -> Check | None:
    """Check a clock against this machine's; None if they agree."""
    if abs(skew_s) <= CLOCKS_MAY_DIFFER_S:
        return None
    way = "ahead of" if skew_s > 0 else "behind"
    return warn(f"clock of {whose}", "SG232", f"{abs(skew_s):.0f} s {way} this machine's clock")


def skew_s(theirs_unix_s: float, asked_unix_s: float, answered_unix_s: float) -> float:
    """How far a clock, read between request and response, is ahead; 0 if the round trip explains it."""
    if theirs_unix_s > answered_unix_s:
        return theirs_unix_s - answered_unix_s
    return min(0.0, theirs_unix_s - asked_unix_s)


def on_files(about: ServerInfo, connections: int) -> Check:
    """Check that the server has open files to spare."""
    limit, used = about.open_files_limit, about.open_files
    if limit is None:
        return ok("open files", "no limit")
    if used is not None and used > FEW_FILES * limit:
        return fail("open files", "SG233", f"{used} of {limit} in use")
    if 4 * connections > limit:
        return warn("open files", "SG233", f"limit of {limit} for {connections} proxies and agents")
    return ok("open files", f"{'?' if used is None else used} of {limit} in use")


def on_disk(disk: DiskSpace | None) -> Check | None:
    """Check that the state folder is writable and has room; None without a state folder."""
    if disk is None:
        return None
    free = disk.free_bytes
    where = f"state folder {disk.folder}"
    if not disk.writable:
        return fail("disk", "SG234", f"{where} is not writable")
    if free < LITTLE_DISK_BYTES:
        return fail("disk", "SG234", f"{where} has {free / 2**20:.0f} MiB left")
    return ok("disk", f"{where} has {free / 2**30:.1f} GiB left")


def on_envoys(proxies: Sequence[ProxyInfo]) -> Iterator[Check]:
    """Check that connected proxies are new enough and have the extensions they need."""
    fine, silent = 0, 0
    for proxy in proxies:
        name, version = f"proxy {proxy.node}", proxy.version
        old = proxy.user_agent == "envoy" and parsed_version(version) < OLDEST_ENVOY
        if old:
            least = ".".join(map(str, OLDEST_ENVOY))
            yield warn(name, "SG252", f"Envoy {version or 'of unknown version'}; oldest supported: {least}")
        if proxy.lacks:
            yield fail(name, "SG253", f"lacks {names_text(proxy.lacks)}")
        fine += not old and proxy.lacks == ()
        silent += not old and proxy.lacks is None
    if fine:
        yield ok("Envoy", f"{count_text(fine, 'proxy')} with the required version and extensions")
    if silent:
        yield ok("Envoy", f"{count_text(silent, 'proxy')} with unknown version and extensions")
