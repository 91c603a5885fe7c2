"""Drop packets received by a socket, with a classic BPF program that the kernel runs per packet.

A filtered TCP packet counts as lost: it is not acknowledged, so the sender retransmits it. The filter of a
listening socket applies to SYNs. Some kernels allow filters on one's own TCP sockets, others need CAP_NET_ADMIN:
``unavailable_reason`` tests it. IPv4 and Linux only.

Source: Linux, Documentation/networking/filter.rst; ``tcp_filter`` in net/ipv4/tcp_ipv4.c.
"""

import ctypes
import ipaddress
import socket
import struct
from asyncio.trsock import TransportSocket
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

Program = tuple[tuple[int, int, int, int], ...]
"""Instructions: code, jump if true, jump if false, constant."""

# <asm-generic/socket.h>; Python's socket module does not have it.
_SO_ATTACH_FILTER: Final = 26

# <linux/bpf_common.h>: loads, jumps and returns of 32 bits.
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
# <linux/filter.h>: negative offsets access extensions (-0x1000: a random number at 56) and the IP header
# (-0x100000; source address at 12).
_RANDOM: Final = 0xFFFFF000 + 56
_SOURCE_ADDRESS: Final = 0xFFF00000 + 12
_DROP: Final = (_RETURN, 0, 0, 0)
_KEEP: Final = (_RETURN, 0, 0, 0xFFFFFFFF)


def loss_program(share: float) -> Program:
    """Drop this share of all packets at random."""
    if share >= 1.0:
        return (_DROP,)
    if share <= 0.0:
        return (_KEEP,)
    return ((_LOAD, 0, 0, _RANDOM), (_IF_AT_LEAST, 1, 0, round(share * 0xFFFFFFFF)), _DROP, _KEEP)


def loss_program_by_source(shares: Mapping[str, float], others: float) -> Program:
    """Drop packets of these addresses with these shares, and all others with the share ``others``."""
    program = [(_LOAD, 0, 0, _SOURCE_ADDRESS)]
    for address, share in shares.items():
        verdict = loss_program(share)
        program += [(_IF_EQUAL, 0, len(verdict), int(ipaddress.IPv4Address(address))), *verdict]
    return (*program, *loss_program(others))


def attach_filter(one: socket.socket | TransportSocket, program: Program) -> None:
    """Attach the program to the socket, replacing any other.

    Raises PermissionError if filters are unavailable; see ``unavailable_reason``.
    """
    code = ctypes.create_string_buffer(_packed(program))
    # struct sock_fprog: number of instructions and pointer to them.
    said = struct.pack("HP", len(program), ctypes.addressof(code))
    try:
        one.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, said)
    except PermissionError:
        # Without permission there is no filter either, which is what a program without loss needs.
        if _DROP in program:
            raise


@cache
def unavailable_reason() -> str:
    """Why this process cannot drop packets; empty if it can."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            attach_filter(probe, loss_program(1.0))
        except PermissionError:
            return "this kernel needs CAP_NET_ADMIN (root) to drop packets of TCP connections"
    return ""


def _packed(program: Sequence[tuple[int, int, int, int]]) -> bytes:
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)
