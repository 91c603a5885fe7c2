"""Where a port listens, as people write it, and who comes to it: for the agent and for the control plane alike."""

import ipaddress
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A host and a TCP port to listen on; port 0 takes a free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """The address written as ``127.0.0.1:18011``, ``[::1]:18011`` or ``:18011`` (every interface).

        Raises ValueError, which says how to write it.
        """
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535:
            raise ValueError("write HOST:PORT, such as 127.0.0.1:18011")
        return cls(host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        """``host:port``, with brackets round an IPv6 host."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def source_network(said: str) -> str:
    """The host at an IP address: the address itself, or the /64 it is in; what is no address is taken as it is."""
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
