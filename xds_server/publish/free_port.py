"""Whether a port is free, before there is anything to serve on it."""

import socket

from engine.address import ListenAddress
from xds_server.serve_config import ConfigError


def check_port_free(address: ListenAddress) -> None:
    """ConfigError with the reason of the system when the port cannot be opened; gRPC does not report the reason.

    The port itself opens only when there is something to serve.
    """
    try:
        info = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, place = info[0]
        with socket.socket(family, kind, protocol) as probe:
            # As the server will: what a closed connection still holds for a minute does not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        raise ConfigError(f"--listen: cannot listen on {address}: {error.strerror}") from error
