"""HTTP/2 frames: bytes to frames and back. Source: RFC 9113, sections 4, 6 and 7."""

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

# Plain numbers: frames are compared by the million, and members of an IntEnum compare ten times slower.
DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

FRAME_HEADER_BYTES: Final = 9
DEFAULT_FRAME_BYTES: Final = 16_384
"""Limit of a payload in both directions, unless a peer permits more. We never do."""

DEFAULT_WINDOW: Final = 65_535
MAX_WINDOW: Final = 2**31 - 1

_HEADER: Final = Struct(">HBBBL")
"""Length in two parts (24 bits), type, flags, stream."""

_STREAM_MASK: Final = 0x7FFF_FFFF
_SETTING: Final = Struct(">HL")
_WORD: Final = Struct(">L")
_TWO_WORDS: Final = Struct(">LL")


class ErrorCode(IntEnum):
    """Reason of a reset or a GOAWAY. Source: RFC 9113, section 7."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class H2Error(Exception):
    """A peer's error that ends its connection; ``code`` is sent in GOAWAY."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class Frame(NamedTuple):
    """One frame; ``payload`` still has its padding."""

    kind: int
    flags: int
    stream: int
    payload: bytes


class FrameReader:
    """Frames of a byte stream that arrives in any pieces. Holds at most one incomplete frame."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Complete frames, each as soon as it is; ``H2Error`` for one above the limit. Consume them all."""
        if self._rest:
            data = self._rest + data
        at, size = 0, len(data)
        while size - at >= FRAME_HEADER_BYTES:
            high, low, kind, flags, stream = _HEADER.unpack_from(data, at)
            length = high << 8 | low
            if length > DEFAULT_FRAME_BYTES:
                raise H2Error(ErrorCode.FRAME_SIZE_ERROR, f"frame of {length} bytes; limit {DEFAULT_FRAME_BYTES}")
            end = at + FRAME_HEADER_BYTES + length
            if end > size:
                break
            payload = data[at + FRAME_HEADER_BYTES : end]
            at = end
            yield Frame(kind, flags, stream & _STREAM_MASK, payload)
        self._rest = data[at:]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return frame_header(kind, flags, stream, len(payload)) + payload


def frame_header(kind: int, flags: int, stream: int, size: int) -> bytes:
    """Header of a frame whose payload has this many bytes."""
    return _HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream)


def settings(values: dict[int, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*one) for one in values.items()))


def window_update(stream: int, increment: int) -> bytes:
    """A WINDOW_UPDATE frame."""
    return frame(WINDOW_UPDATE, 0, stream, _WORD.pack(increment))


def reset(stream: int, code: ErrorCode) -> bytes:
    """A RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream, _WORD.pack(code))


def go_away(last_stream: int, code: ErrorCode, text: str = "") -> bytes:
    """A GOAWAY frame; ``text`` explains it to a reader of the peer."""
    return frame(GOAWAY, 0, 0, _TWO_WORDS.pack(last_stream, code) + text.encode())


def uint31(payload: bytes) -> int:
    """The first 31 bits of a payload."""
    return int(_WORD.unpack_from(payload)[0]) & _STREAM_MASK


def setting_values(payload: bytes) -> Iterator[tuple[int, int]]:
    """Identifiers and values of a SETTINGS payload."""
    return _SETTING.iter_unpack(payload)


def unpadded(flags: int, payload: bytes) -> bytes:
    """Payload of DATA or HEADERS without padding; ``H2Error`` if there is more padding than payload."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise H2Error(ErrorCode.PROTOCOL_ERROR, "more padding than payload")
    return payload[1 : len(payload) - payload[0]]
