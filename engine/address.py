"""Listen addresses and client hosts, for agent and control plane."""

import ipaddress
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Host and TCP port to listen on; port 0 picks a free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``127.0.0.1:18011``, ``[::1]:18011`` or ``:18011`` (every interface).

        ValueError states the format.
        """
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535:
            raise ValueError("write HOST:PORT, such as 127.0.0.1:18011")
        return cls(host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether it is a loopback address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        """``host:port``, with brackets around an IPv6 host."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def source_network(said: str) -> str:
    """Host of an IP address: the address, or its /64 for IPv6; other text unchanged."""
    said = said.partition("%")[0]
    try:
        address = ipaddress.ip_address(said)
    except ValueError:
        return said
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return str(ipaddress.ip_network((address, 64), strict=False))
        address = address.ipv4_mapped
    return str(address)
