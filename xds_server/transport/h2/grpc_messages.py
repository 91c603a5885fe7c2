"""gRPC messages in a stream of bytes: a flag, a length of four bytes, and the message.

Source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
"""

from enum import IntEnum
from struct import Struct
from typing import Final

PREFIX_BYTES: Final = 5

_PREFIX: Final = Struct(">BL")


class GrpcCode(IntEnum):
    """Status of a gRPC stream. Source: https://grpc.github.io/grpc/core/md_doc_statuscodes.html"""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13


class GrpcMessageError(Exception):
    """A message that is not served; ``code`` ends its stream."""

    def __init__(self, code: GrpcCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class GrpcMessageReader:
    """Messages of one stream. ``max_bytes``: limit of the next message, checked at its first five bytes."""

    __slots__ = ("_buffer", "max_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._buffer: bytes | bytearray = b""

    @property
    def held_bytes(self) -> int:
        """Bytes received and not returned."""
        return len(self._buffer)

    def append(self, data: bytes) -> None:
        """Add received bytes."""
        if not self._buffer:
            self._buffer = data
            return
        if isinstance(self._buffer, bytes):
            self._buffer = bytearray(self._buffer)
        self._buffer += data

    def next_message(self) -> bytes | None:
        """The next complete message, if there is one; ``GrpcMessageError`` if it cannot be served."""
        buffer = self._buffer
        if len(buffer) < PREFIX_BYTES:
            return None
        flag, size = _PREFIX.unpack_from(buffer)
        if flag:
            compressed = "messages must not be compressed (grpc-accept-encoding: identity)"
            raise GrpcMessageError(
                GrpcCode.UNIMPLEMENTED if flag == 1 else GrpcCode.INTERNAL,
                compressed if flag == 1 else f"message with flag {flag}",
            )
        if size > self.max_bytes:
            raise GrpcMessageError(GrpcCode.RESOURCE_EXHAUSTED, f"message of {size} bytes; limit {self.max_bytes}")
        end = PREFIX_BYTES + size
        if len(buffer) < end:
            return None
        message = bytes(buffer[PREFIX_BYTES:end])
        if len(buffer) == end:
            self._buffer = b""
        else:
            # Only a bytearray is cut without copying the rest.
            rest = self._buffer = buffer if isinstance(buffer, bytearray) else bytearray(buffer)
            del rest[:end]
        return message


def prefixed(message: bytes) -> bytes:
    """A message as it is sent."""
    return _PREFIX.pack(0, len(message)) + message
