"""Where a port listens, as people write it: for the agent and for the control plane alike."""

import ipaddress
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Address:
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
