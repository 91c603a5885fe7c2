"""TCP connections of this process to one of its ports, as the kernel counts them (Linux), and their end."""

import ctypes
import ipaddress
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

_INFO_BYTES: Final = 136
_ACKED_RECEIVED: Final = struct.Struct("=QQ")
_ACKED_RECEIVED_OFFSET: Final = 120
"""Of ``tcpi_bytes_acked`` and ``tcpi_bytes_received``. Source: linux/tcp.h."""

_DISCONNECT: Final = bytes(16)
"""An address of the family AF_UNSPEC. Source: connect(2)."""


class TcpConnection(NamedTuple):
    """Bytes of a connection so far, and its descriptor."""

    received: int
    sent: int
    descriptor: int = -1


def open_descriptors() -> Sequence[int]:
    """Descriptors of this process; empty where the system does not say."""
    try:
        with os.scandir("/proc/self/fd") as found:
            return [int(one.name) for one in found]
    except OSError:
        return ()


def tcp_connections(port: int) -> Mapping[str, TcpConnection]:
    """Connections to this local port, named like gRPC peers (``ipv4:10.0.0.1:4711``); empty where the system does
    not say. 10 us for each descriptor of the process."""
    found: dict[str, TcpConnection] = {}
    for descriptor in open_descriptors():
        try:
            borrowed = socket.socket(fileno=descriptor)
        except OSError:  # no socket, or closed meanwhile
            continue
        try:
            name = _peer_name(borrowed, port)
            info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES) if name else b""
        except OSError:  # not connected, or not TCP
            continue
        finally:
            borrowed.detach()
        if len(info) == _INFO_BYTES:
            sent, received = _ACKED_RECEIVED.unpack_from(info, _ACKED_RECEIVED_OFFSET)
            found[name] = TcpConnection(received, sent, descriptor)
    return found


def reset(descriptor: int, port: int, peer: str) -> bool:
    """End a connection whose owner will close the descriptor; whether it was still this one.

    At once: its peer gets a RST, and what waits in the kernel is dropped; ``shutdown`` would leave it to be read.
    """
    try:
        borrowed = socket.socket(fileno=descriptor)
    except OSError:
        return False
    try:
        if _peer_name(borrowed, port) != peer:
            return False
        if ctypes.CDLL(None).connect(descriptor, _DISCONNECT, len(_DISCONNECT)):
            borrowed.shutdown(socket.SHUT_RDWR)
    except OSError:  # its peer ended it meanwhile
        return False
    finally:
        borrowed.detach()
    return True


def _peer_name(borrowed: socket.socket, port: int) -> str:
    """The peer as gRPC names it; empty unless it is an IP address, connected to this port."""
    if borrowed.family not in (socket.AF_INET, socket.AF_INET6) or borrowed.getsockname()[1] != port:
        return ""
    host, peer_port = borrowed.getpeername()[:2]
    if borrowed.family == socket.AF_INET:
        return f"ipv4:{host}:{peer_port}"
    mapped = ipaddress.IPv6Address(host.partition("%")[0]).ipv4_mapped
    return f"ipv6:[{host}]:{peer_port}" if mapped is None else f"ipv4:{mapped}:{peer_port}"
