"""HTTPS to an address whose certificate proves another name, and a test for TLS behind a port."""

import http.client
import socket
import ssl
from typing import Final

_PROBE_S: Final = 1.0


class NamedHTTPSConnection(http.client.HTTPSConnection):
    """A connection to one address whose certificate must prove ``name``."""

    def __init__(self, host: str, port: int, *, name: str, timeout_s: float, context: ssl.SSLContext) -> None:
        super().__init__(host, port, timeout=timeout_s, context=context)
        self._name = name
        self._tls = context

    def connect(self) -> None:
        plain = socket.create_connection((self.host, self.port), self.timeout)
        try:
            self.sock = self._tls.wrap_socket(plain, server_hostname=self._name)
        except BaseException:
            plain.close()
            raise


def answers_plain(error: ssl.SSLError) -> bool:
    """Whether the handshake failed because the server's answer was no TLS, such as plain HTTP."""
    return error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG")


def speaks_tls(host: str, port: int) -> bool:
    """Whether a TLS handshake gets any TLS answer there."""
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE  # nothing is sent, only the protocol matters
    try:
        with (
            socket.create_connection((host, port), _PROBE_S) as plain,
            tls.wrap_socket(plain, server_hostname=host),
        ):
            return True
    except ssl.SSLError as error:
        # An alert is an answer in TLS; plain HTTP is not TLS record.
        return "ALERT" in (error.reason or "")
    except OSError:
        return False
