"""Headers of requests and responses: HPACK and what RFC 9113 and gRPC require of them.

What we send is encoded without HPACK's dynamic table, so one block serves all connections.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import quote

from hpack import Decoder, Encoder, HPACKError, NeverIndexedHeaderTuple

from xds_server.transport.h2.frames import ErrorCode, H2Error

EMPTY_TABLE: Final = b"\x20"
"""Begins the first block of a connection: our dynamic table has no entries, whatever the peer permits.

Source: RFC 7541, 4.2.
"""

MAX_STATUS_CHARACTERS: Final = 1024
"""Longest text of a status; all headers of a block fit into one frame."""

_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_VALUE: Final = re.compile(rb"(?:[^\0\r\n\t ](?:[^\0\r\n]*[^\0\r\n\t ])?)?", re.DOTALL)
_PSEUDO: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_OF_CONNECTIONS: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_PLAIN_TEXT: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


class MalformedRequestError(Exception):
    """Headers that RFC 9113 forbids; their stream is reset."""


class RequestHead(NamedTuple):
    """What decides how a request is served."""

    method: str
    path: str
    content_type: str


def decoder(max_bytes: int) -> Decoder:
    """HPACK decoder that refuses lists above this size, as RFC 9113 counts them."""
    return Decoder(max_header_list_size=max_bytes)


def decode(state: Decoder, block: bytes) -> list[tuple[bytes, bytes]]:
    """Headers of a block; ``H2Error`` if it is broken or too large, which leaves ``state`` unusable."""
    try:
        return [(name, value) for name, value in state.decode(block, raw=True)]
    except HPACKError as error:
        raise H2Error(ErrorCode.COMPRESSION_ERROR, f"headers: {error}") from error


def request_head(headers: Iterable[tuple[bytes, bytes]]) -> RequestHead:
    """The request with these headers; ``MalformedRequestError`` if they are invalid."""
    pseudo: dict[bytes, bytes] = {}
    content_type, regular = b"", False
    for name, value in headers:
        if not _VALUE.fullmatch(value):
            raise MalformedRequestError("a header value with control characters")
        if name.startswith(b":"):
            if regular or name in pseudo or name not in _PSEUDO:
                raise MalformedRequestError("a pseudo-header that is late, unknown or repeated")
            pseudo[name] = value
            continue
        regular = True
        _check_field(name, value)
        if name == b"content-type":
            content_type = value
    path = pseudo.get(b":path", b"")
    if not (path and pseudo.get(b":method") and pseudo.get(b":scheme")):
        raise MalformedRequestError(":method, :scheme or :path is missing")
    return RequestHead(*(text.decode("latin-1") for text in (pseudo[b":method"], path, content_type)))


def check_trailers(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """``MalformedRequestError`` if these trailers are invalid."""
    for name, value in headers:
        _check_field(name, value)
        if not _VALUE.fullmatch(value):
            raise MalformedRequestError("a trailer with control characters")


def _check_field(name: bytes, value: bytes) -> None:
    if not _NAME.fullmatch(name):
        raise MalformedRequestError("an invalid header name")
    if name in _OF_CONNECTIONS or (name == b"te" and value != b"trailers"):
        raise MalformedRequestError("a header of connections")


def _block(headers: Iterable[tuple[str, str]]) -> bytes:
    return Encoder().encode([NeverIndexedHeaderTuple(*one) for one in headers], huffman=False)


_GRPC: Final = ((":status", "200"), ("content-type", "application/grpc"), ("grpc-accept-encoding", "identity"))

RESPONSE: Final = _block(_GRPC)
"""Headers of a response whose messages follow."""

NOT_GRPC: Final = _block(((":status", "415"), ("content-length", "0")))
"""Response to a request that is not gRPC."""


def trailers(status: int, text: str, *, only: bool) -> bytes:
    """Trailers with this status; ``only``: of a response without headers."""
    shown = quote(text[:MAX_STATUS_CHARACTERS], safe=_PLAIN_TEXT)
    message = (("grpc-message", shown),) if shown else ()
    return _block((*(_GRPC if only else ()), ("grpc-status", str(status)), *message))
