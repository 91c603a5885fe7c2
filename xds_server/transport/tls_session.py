"""TLS of one connection as a value: encrypted bytes in and out, no socket.

asyncio's own TLS keeps 256 KiB for each connection, which is more than all the rest of a stream.
"""

import ssl
from typing import Final

from engine.tls.certificate_files import identities_of

_READ_BYTES: Final = 65_536


class TlsSession:
    """The server's side. ``ssl.SSLError`` from any method means that the connection cannot continue."""

    __slots__ = ("_incoming", "_outgoing", "_tls", "is_open")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.is_open = False
        """Whether the handshake is complete."""

    def receive(self, data: bytes) -> bytes:
        """Decrypt bytes of the peer; during the handshake there are none."""
        self._incoming.write(data)
        if not self.is_open:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                return b""
            self.is_open = True
        parts: list[bytes] = []
        try:
            while part := self._tls.read(_READ_BYTES):
                parts.append(part)
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            # The second: the peer has closed its direction, and its socket follows.
            pass
        return b"".join(parts)

    def encrypt(self, data: bytes) -> None:
        """Encrypt bytes for the peer; ``outgoing`` has them."""
        self._tls.write(data)

    def close(self) -> None:
        """Announce the end of the connection."""
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            return  # the peer has not announced its own end, which does not matter

    def outgoing(self) -> bytes:
        """Encrypted bytes to send."""
        return self._outgoing.read()

    def protocol(self) -> str | None:
        """The negotiated protocol (ALPN); None if the peer named none of ours."""
        return self._tls.selected_alpn_protocol()

    def identities(self) -> tuple[str, ...]:
        """URI and DNS SANs that the peer's certificate proves."""
        der = self._tls.getpeercert(binary_form=True)
        return identities_of(ssl.DER_cert_to_PEM_cert(der).encode()) if der else ()
