"""A kernel link: a veth pair with one end in a network namespace, and netem on both ends.

The kernel applies latency, jitter and loss for all peers of a link from end to end, including handshakes and
congestion control. Rules for some peers only, and everything else, stay with the relay. ``unavailable_reason``
returns what is missing: root, the tools ``ip`` and ``tc``, or netem in the kernel.

Namespaces are named after their process and removed when it ends. The next process removes those of a killed one.
"""

import asyncio
import ctypes
import ipaddress
import os
import re
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from chaos.netem.link_rules import ANY_SOURCE, LinkRule

Commands = tuple[tuple[str, ...], ...]

MOST: Final = 63
"""Maximum kernel links per process."""

NAMESPACES: Final = Path("/run/netns")
_NAME: Final = re.compile(r"swg-(\d+)-\d+")
_NETWORK: Final = ipaddress.IPv4Network("198.18.0.0/15")
"""Address range for benchmarks, never routed. Source: RFC 2544, appendix C.2.2."""
_CLONE_NEWNET: Final = 0x40000000  # <linux/sched.h>


class KernelLinkError(RuntimeError):
    """A kernel link could not be created or changed; the message has the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VethEnds:
    """Names and addresses of one veth pair."""

    namespace: str
    near: str
    far: str
    near_address: str
    far_address: str


def veth_ends(pid: int, number: int) -> VethEnds:
    """Names and addresses of a process's link with this number."""
    subnet = (pid * (MOST + 1) + number) % (_NETWORK.num_addresses // 4)
    return VethEnds(
        namespace=f"swg-{pid}-{number}",
        near=f"swg{pid}n{number}",
        far=f"swg{pid}f{number}",
        near_address=str(_NETWORK[4 * subnet + 1]),
        far_address=str(_NETWORK[4 * subnet + 2]),
    )


def setup_commands(one: VethEnds) -> Commands:
    """Commands that create a veth pair without impairment."""
    inside = ("ip", "-n", one.namespace)
    return (
        ("ip", "netns", "add", one.namespace),
        ("ip", "link", "add", one.near, "type", "veth", "peer", "name", one.far, "netns", one.namespace),
        ("ip", "addr", "add", f"{one.near_address}/30", "dev", one.near),
        ("ip", "link", "set", one.near, "up"),
        (*inside, "addr", "add", f"{one.far_address}/30", "dev", one.far),
        (*inside, "link", "set", one.far, "up"),
    )


def netem_commands(one: VethEnds, *, latency_s: float, jitter_s: float, loss_percent: float) -> Commands:
    """Commands that set the impairment per direction; all zeros removes it."""
    # netem's jitter is symmetric around the delay; ours only adds to it.
    delay_us, jitter_us = round((latency_s + jitter_s / 2) * 1e6), round(jitter_s / 2 * 1e6)
    netem = ("root", "netem", "delay", f"{delay_us}us", f"{jitter_us}us", "loss", f"{loss_percent:g}%")
    return (
        ("tc", "qdisc", "replace", "dev", one.near, *netem),
        ("tc", "-n", one.namespace, "qdisc", "replace", "dev", one.far, *netem),
    )


async def unavailable_reason(*, netem: bool = True) -> str:
    """Why kernel links, or netem on them, are unavailable; empty if available. Cleans up after itself."""
    if missing := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        return f"{missing[0]} not found; install iproute2"
    probe = veth_ends(os.getpid(), MOST)
    try:
        await _run(setup_commands(probe))
    except KernelLinkError as error:
        await _remove(probe.namespace)
        return f"cannot create a network namespace: {error}"
    try:
        if netem:
            await _run(netem_commands(probe, latency_s=0.001, jitter_s=0.0, loss_percent=0.0))
    except KernelLinkError as error:
        return f"the kernel lacks netem (CONFIG_NET_SCH_NETEM): {error}"
    finally:
        await _remove(probe.namespace)
    return ""


def stale_namespaces(namespaces: Path = NAMESPACES) -> tuple[str, ...]:
    """Namespaces of processes that have ended."""
    names = sorted(path.name for path in namespaces.iterdir()) if namespaces.is_dir() else []
    return tuple(name for name in names if (found := _NAME.fullmatch(name)) and not _alive(found[1]))


async def remove_stale_namespaces() -> tuple[str, ...]:
    """Remove stale namespaces; return their names. Safe to run concurrently."""
    names = stale_namespaces()
    for name in names:
        try:
            await _remove(name)
        except KernelLinkError:
            if name in stale_namespaces():
                raise
    return names


class KernelLink:
    """``async with KernelLink(number, (host, port)) as link``: connections to ``link.to`` cross the veth pair.

    They arrive at the socket that ``listener`` returns.
    """

    def __init__(self, number: int) -> None:
        self._ends = veth_ends(os.getpid(), number)
        # None after the kernel has refused a command: the impairment is then unknown.
        self._spoilt: tuple[float, float, float] | None = (0.0, 0.0, 0.0)
        self.listener: socket.socket
        self.to: tuple[str, int]

    async def __aenter__(self) -> Self:
        await _run(setup_commands(self._ends))
        self.listener = await asyncio.to_thread(_listening, self._ends)
        self.to = (self._ends.far_address, int(self.listener.getsockname()[1]))
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        await _remove(self._ends.namespace)

    async def carry(self, rules: Mapping[str, LinkRule], link: str) -> Mapping[str, LinkRule]:
        """Apply the rules that concern all peers of this link; return the rules without that part."""
        mine = [rule for rule in rules.values() if link in rule.links and ANY_SOURCE in rule.sources]
        kept = 1.0
        for rule in mine:
            kept *= 1 - rule.loss_percent / 100
        spoilt = (
            sum(rule.latency_s for rule in mine),
            sum(rule.jitter_s for rule in mine),
            100 * (1 - kept),
        )
        if spoilt != self._spoilt:
            self._spoilt = None
            latency_s, jitter_s, loss_percent = spoilt
            await _run(
                netem_commands(self._ends, latency_s=latency_s, jitter_s=jitter_s, loss_percent=loss_percent)
            )
            self._spoilt = spoilt
        return {name: _without(rule) if rule in mine else rule for name, rule in rules.items()}


def _without(rule: LinkRule) -> LinkRule:
    return replace(rule, latency_s=0.0, jitter_s=0.0, loss_percent=0.0)


def _alive(pid: str) -> bool:
    """Whether the process that created it still runs, and its pid was not reused."""
    try:
        return b"chaos" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _listening(one: VethEnds) -> socket.socket:
    """A listening socket inside the namespace, created by a thread that enters it."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open("rb") as here, (NAMESPACES / one.namespace).open("rb") as there:
        if libc.setns(there.fileno(), _CLONE_NEWNET) != 0:
            msg = f"setns: {os.strerror(ctypes.get_errno())}"
            raise KernelLinkError(msg)
        try:
            return socket.create_server((one.far_address, 0))
        finally:
            libc.setns(here.fileno(), _CLONE_NEWNET)


async def _remove(namespace: str) -> None:
    """Remove the veth pair first: the kernel frees devices late and blocks their names until then."""
    _, pid, number = namespace.split("-")
    if (near := veth_ends(int(pid), int(number)).near) in {name for _, name in socket.if_nameindex()}:
        await _run((("ip", "link", "del", near),))
    if (NAMESPACES / namespace).exists():
        await _run((("ip", "netns", "del", namespace),))


async def _run(commands: Sequence[Sequence[str]]) -> None:
    for command in commands:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        _, said = await process.communicate()
        if process.returncode != 0:
            msg = f"{' '.join(command)}: {said.decode(errors='replace').strip()}"
            raise KernelLinkError(msg)
