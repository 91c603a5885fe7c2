"""Drops packets on their way into a socket: a classic BPF program that the kernel asks for each of them.

A TCP packet that a filter refuses is as good as lost on the way: it is not acknowledged, and sent again.
The filter of a listening socket decides on the packets that open connections. Some kernels let any user attach one
to a TCP socket of his own, others only who has CAP_NET_ADMIN: ``unavailable_reason`` asks. IPv4 only, Linux only.

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
"""Instructions: code, where to jump when true, when false, and a constant."""

# <asm-generic/socket.h>; Python's socket module does not have it.
_SO_ATTACH_FILTER: Final = 26

# <linux/bpf_common.h>: loads, jumps and returns of 32 bits.
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
# <linux/filter.h>: negative offsets reach behind the packet (-0x1000: a random number at 56) and in front of the
# TCP header (-0x100000: the IP header, whose source address is at 12).
_RANDOM: Final = 0xFFFFF000 + 56
_SOURCE_ADDRESS: Final = 0xFFF00000 + 12
_DROP: Final = (_RETURN, 0, 0, 0)
_KEEP: Final = (_RETURN, 0, 0, 0xFFFFFFFF)


def loss_program(share: float) -> Program:
    """Lose this share of all packets, each by chance."""
    if share >= 1.0:
        return (_DROP,)
    if share <= 0.0:
        return (_KEEP,)
    return ((_LOAD, 0, 0, _RANDOM), (_IF_AT_LEAST, 1, 0, round(share * 0xFFFFFFFF)), _DROP, _KEEP)


def loss_program_by_source(shares: Mapping[str, float], others: float) -> Program:
    """Lose packets of these addresses with these shares, and those of ``others`` with another."""
    program = [(_LOAD, 0, 0, _SOURCE_ADDRESS)]
    for address, share in shares.items():
        verdict = loss_program(share)
        program += [(_IF_EQUAL, 0, len(verdict), int(ipaddress.IPv4Address(address))), *verdict]
    return (*program, *loss_program(others))


def attach_filter(one: socket.socket | TransportSocket, program: Program) -> None:
    """From now on the socket's packets go through the program, and through no other.

    Raises PermissionError where ``unavailable_reason`` says why.
    """
    code = ctypes.create_string_buffer(_packed(program))
    # struct sock_fprog: the number of instructions and where they are.
    said = struct.pack("HP", len(program), ctypes.addressof(code))
    try:
        one.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, said)
    except PermissionError:
        # Who may not attach any has none either: nothing is lost, which is all that some programs ask for.
        if _DROP in program:
            raise


@cache
def unavailable_reason() -> str:
    """Why this process cannot lose packets; empty where it can."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            attach_filter(probe, loss_program(1.0))
        except PermissionError:
            return "this kernel lets only root (CAP_NET_ADMIN) lose packets of TCP connections"
    return ""


def _packed(program: Sequence[tuple[int, int, int, int]]) -> bytes:
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)
