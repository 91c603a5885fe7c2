"""A link of the kernel's own: a pair of virtual devices with a namespace at the far end, and netem on both.

Where it is allowed, latency, jitter and loss of everybody on a link are the kernel's business from end to end,
handshakes and congestion control included; what is meant for some peers only, and everything else, stays the
wire's. ``unavailable_reason`` says what is missing where it is not allowed: root, the tools ``ip`` and ``tc``, or
a kernel with netem.

Namespaces are named after the process that laid them. They go when it ends; those of a process that was killed are
swept by the next one.
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
"""Cables that one process may lay."""

NAMESPACES: Final = Path("/run/netns")
_NAME: Final = re.compile(r"swg-(\d+)-\d+")
_NETWORK: Final = ipaddress.IPv4Network("198.18.0.0/15")
"""For measurements between networks; nobody's addresses. Source: RFC 2544, appendix C.2.2."""
_CLONE_NEWNET: Final = 0x40000000  # <linux/sched.h>


class KernelLinkError(RuntimeError):
    """A cable was not laid, or did not obey; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VethEnds:
    """Names and addresses of one cable."""

    namespace: str
    near: str
    far: str
    near_address: str
    far_address: str


def veth_ends(pid: int, number: int) -> VethEnds:
    """Those of a process's cable of this number."""
    subnet = (pid * (MOST + 1) + number) % (_NETWORK.num_addresses // 4)
    return VethEnds(
        namespace=f"swg-{pid}-{number}",
        near=f"swg{pid}n{number}",
        far=f"swg{pid}f{number}",
        near_address=str(_NETWORK[4 * subnet + 1]),
        far_address=str(_NETWORK[4 * subnet + 2]),
    )


def setup_commands(one: VethEnds) -> Commands:
    """What makes a cable, calm so far."""
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
    """What makes it so bad each way, from whatever it was; nothing of all is calm."""
    # netem's jitter is to both sides of its delay; ours is on top.
    delay_us, jitter_us = round((latency_s + jitter_s / 2) * 1e6), round(jitter_s / 2 * 1e6)
    netem = ("root", "netem", "delay", f"{delay_us}us", f"{jitter_us}us", "loss", f"{loss_percent:g}%")
    return (
        ("tc", "qdisc", "replace", "dev", one.near, *netem),
        ("tc", "-n", one.namespace, "qdisc", "replace", "dev", one.far, *netem),
    )


async def unavailable_reason(*, netem: bool = True) -> str:
    """Why no cable can be laid here, or none that can be spoilt; empty where it can. Nothing is left behind."""
    if missing := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        return f"there is no {missing[0]} here: it is part of iproute2"
    probe = veth_ends(os.getpid(), MOST)
    try:
        await _run(setup_commands(probe))
    except KernelLinkError as error:
        await _remove(probe.namespace)
        return f"no network namespace can be made here: {error}"
    try:
        if netem:
            await _run(netem_commands(probe, latency_s=0.001, jitter_s=0.0, loss_percent=0.0))
    except KernelLinkError as error:
        return f"this kernel has no netem (CONFIG_NET_SCH_NETEM): {error}"
    finally:
        await _remove(probe.namespace)
    return ""


def stale_namespaces(namespaces: Path = NAMESPACES) -> tuple[str, ...]:
    """Names of what processes laid that are no more."""
    names = sorted(path.name for path in namespaces.iterdir()) if namespaces.is_dir() else []
    return tuple(name for name in names if (found := _NAME.fullmatch(name)) and not _alive(found[1]))


async def remove_stale_namespaces() -> tuple[str, ...]:
    """Remove what was left behind; return its names. Others may be at it as well: who comes second has it done."""
    names = stale_namespaces()
    for name in names:
        try:
            await _remove(name)
        except KernelLinkError:
            if name in stale_namespaces():
                raise
    return names


class KernelLink:
    """``async with Cable(number, (host, port)) as cable``: what connects to ``cable.to`` crosses it and comes to
    the socket that ``listener`` gives.
    """

    def __init__(self, number: int) -> None:
        self._ends = veth_ends(os.getpid(), number)
        # None where the kernel has refused something: how bad it is then, nobody knows.
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
        """Be as bad as these rules say of everybody on this link; return them without what is done here."""
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
    """Whether the process that laid it still runs, and is no other that has its number by now."""
    try:
        return b"chaos" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _listening(one: VethEnds) -> socket.socket:
    """A socket that listens inside the namespace: a thread of its own goes there, and comes back."""
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
    """The cable first: what is left to its namespace is gone some time after it, its name taken until then."""
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
