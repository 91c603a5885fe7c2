"""Check a port before the server has anything to serve."""

import socket

from engine.address import ListenAddress
from xds_server.serve_config import ConfigError


def check_port_free(address: ListenAddress) -> None:
    """Raise ``ConfigError`` with the system's reason if the port is unavailable; gRPC reports no reason.

    The port itself opens once there is something to serve.
    """
    try:
        info = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, place = info[0]
        with socket.socket(family, kind, protocol) as probe:
            # Like the server: ignore closed connections in TIME_WAIT.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        raise ConfigError(f"--listen: cannot listen on {address}: {error.strerror}") from error
