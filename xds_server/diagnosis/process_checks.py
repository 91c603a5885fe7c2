"""Judgements on versions, clocks, files and disks."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from xds_server.admin_api.server_types import DiskSpace, ProxyInfo, ServerInfo
from xds_server.diagnosis.check_result import Check, fail, ok, warn
from xds_server.model.text import count_text, names_text

LEAST: Final[Mapping[str, tuple[int, ...]]] = {
    "python": (3, 11),
    "envoy-data-plane": (2, 2),
    "grpcio": (1, 70),
    "protobuf": (7, 35, 1),
    "aiohttp": (3, 14),
    "pydantic": (2, 11),
}
"""The least versions of ``pyproject.toml``; a test holds the two together."""

TESTED_ENVOY: Final = (1, 40, 0)
CLOCKS_MAY_DIFFER_S: Final = 3.0
"""A Date header has whole seconds, and an answer takes a while."""

FEW_FILES: Final = 0.8
LITTLE_DISK_BYTES: Final = 64 * 1024 * 1024
"""Room for both files of the state folder many times over, and for a moment of the ledger."""


def parsed(version: str) -> tuple[int, ...]:
    """``1.40.0-dev`` as (1, 40, 0); empty where it begins with no number."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def on_versions(whose: str, python: str, libraries: Mapping[str, str]) -> Iterator[Check]:
    """Whether Python and the libraries of one process are new enough."""
    had = {"python": python, **libraries}
    old = [
        f"{name} {had[name] or 'missing'} (least {'.'.join(map(str, least))})"
        for name, least in LEAST.items()
        if name in had and parsed(had[name]) < least
    ]
    if old:
        yield fail(f"versions of {whose}", "SG231", f"too old: {names_text(old)}")
    else:
        told = ", ".join(f"{name} {had[name]}" for name in ("python", "envoy-data-plane", "grpcio") if name in had)
        yield ok(f"versions of {whose}", told)


def on_server_version(ours: str, theirs: str) -> Check:
    """Whether the command line is of the version of the server."""
    if ours != theirs:
        return warn(
            "version", "SG230", f"this command line is {ours or 'unknown'}, the server {theirs or 'unknown'}"
        )
    return ok("version", f"command line and server are both {ours}")


def on_clock(whose: str, skew_s: float) -> Check | None:
    """Whether a clock is apart from this machine's; None where it is not."""
    if abs(skew_s) <= CLOCKS_MAY_DIFFER_S:
        return None
    way = "ahead of" if skew_s > 0 else "behind"
    return warn(f"clock of {whose}", "SG232", f"{abs(skew_s):.0f} s {way} the clock of this machine")


def skew_s(theirs_unix_s: float, asked_unix_s: float, answered_unix_s: float) -> float:
    """How far a clock is ahead that was read somewhen between asking and the answer; 0 where that explains it."""
    if theirs_unix_s > answered_unix_s:
        return theirs_unix_s - answered_unix_s
    return min(0.0, theirs_unix_s - asked_unix_s)


def on_files(about: ServerInfo, connections: int) -> Check:
    """Whether the server has open files to spare."""
    limit, used = about.open_files_limit, about.open_files
    if limit is None:
        return ok("open files", "no limit")
    if used is not None and used > FEW_FILES * limit:
        return fail("open files", "SG233", f"{used} of {limit} are in use")
    if 4 * connections > limit:
        return warn("open files", "SG233", f"a limit of {limit} for {connections} proxies and agents")
    return ok("open files", f"{'?' if used is None else used} of {limit} in use")


def on_disk(disk: DiskSpace | None) -> Check | None:
    """Whether the state folder can take what it is to keep; None where there is no state folder."""
    if disk is None:
        return None
    free = disk.free_bytes
    where = f"state folder {disk.folder}"
    if not disk.writable:
        return fail("disk", "SG234", f"{where} cannot be written to")
    if free < LITTLE_DISK_BYTES:
        return fail("disk", "SG234", f"{where} has {free / 2**20:.0f} MiB left")
    return ok("disk", f"{where} has {free / 2**30:.1f} GiB left")


def on_envoys(proxies: Sequence[ProxyInfo]) -> Iterator[Check]:
    """Whether connected proxies are new enough, and have the extensions that they are configured to use."""
    fine, silent = 0, 0
    for proxy in proxies:
        name, version = f"proxy {proxy.node}", proxy.version
        old = proxy.user_agent == "envoy" and parsed(version) < TESTED_ENVOY[:2]
        if old:
            least = ".".join(map(str, TESTED_ENVOY))
            yield warn(name, "SG252", f"Envoy {version or 'of unknown version'}; tested with {least}")
        if proxy.lacks:
            yield fail(name, "SG253", f"has no {names_text(proxy.lacks)}")
        fine += not old and proxy.lacks == ()
        silent += not old and proxy.lacks is None
    if fine:
        yield ok("Envoy", f"{count_text(fine, 'proxy')} with the version and every extension needed")
    if silent:
        yield ok("Envoy", f"{count_text(silent, 'proxy')} without a word of what they are built with")
