"""Whether a port can be had, before there is anything to serve on it."""

import socket

from engine.address import ListenAddress
from xds_server.serve_config import ConfigError


def check_port_free(address: ListenAddress) -> None:
    """ConfigError when nobody can listen there, at once and in the system's words, which gRPC keeps to itself.

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
