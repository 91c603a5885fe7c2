"""One HTTP/2 connection of a server: feed bytes, get events; the bytes to send are in ``output``.

Both windows of flow control, the states of streams, and all limits are here. A stream's peer may send ``window``
bytes more than the owner of the stream has released (``release``); of the connection's window, everything is
released at once, because streams bound what is held. Errors of a stream reset it; errors of a connection raise
``H2Error``, and then ``output`` ends with a GOAWAY.

Source: RFC 9113.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from xds_server.transport.h2 import frames
from xds_server.transport.h2.frames import ErrorCode, Frame, FrameReader, H2Error
from xds_server.transport.h2.header_blocks import (
    EMPTY_TABLE,
    MalformedRequestError,
    RequestHead,
    check_trailers,
    decode,
    decoder,
    request_head,
)
from xds_server.transport.h2.limits import MIN_FRAGMENT, SMALL_FRAME_BYTES, FrameBudget, H2Limits

_KEPT_RESETS: Final = 256
"""Streams that we reset: frames that their peer sent before it knew are ignored."""

_PRIORITY_BYTES: Final = 5
_SIZES: Final = {frames.PRIORITY: 5, frames.RST_STREAM: 4, frames.PING: 8, frames.WINDOW_UPDATE: 4}
"""Sizes of payloads that have only one."""

_OF_STREAMS: Final = frozenset(
    {frames.DATA, frames.HEADERS, frames.PRIORITY, frames.RST_STREAM, frames.CONTINUATION}
)
_OF_CONNECTIONS: Final = frozenset({frames.SETTINGS, frames.PING, frames.GOAWAY})


class RequestReceived(NamedTuple):
    """A new stream; ``ended``: its peer sends nothing more."""

    stream: int
    head: RequestHead
    ended: bool


class DataReceived(NamedTuple):
    """Bytes of a stream, to be released."""

    stream: int
    data: bytes
    ended: bool


class StreamClosed(NamedTuple):
    """A stream that was reset, by its peer or because of its peer."""

    stream: int
    code: int


class SendWindowOpened(NamedTuple):
    """More may be sent, on this stream or (0) on all."""

    stream: int


Event: TypeAlias = RequestReceived | DataReceived | StreamClosed | SendWindowOpened


class _StreamState:
    __slots__ = ("local_ended", "receive_window", "remote_ended", "send_window", "unreleased")

    def __init__(self, receive_window: int, send_window: int) -> None:
        self.receive_window = receive_window
        self.send_window = send_window
        self.unreleased = 0
        self.remote_ended = False
        self.local_ended = False


class _HeaderBlock:
    """A block whose last frame is missing."""

    __slots__ = ("ended", "frame_count", "parts", "size", "stream")

    def __init__(self, stream: int, *, ended: bool) -> None:
        self.stream = stream
        self.ended = ended
        self.parts: list[bytes] = []
        self.size = 0
        self.frame_count = 0


class H2Connection:
    """State of one connection. ``now_s`` arguments share one monotonic clock."""

    __slots__ = (
        *("_block", "_control", "_decoder", "_frames", "_last_stream", "_limits", "_max_frame", "_preface"),
        *("_receive_window", "_reset_streams", "_resets", "_send_window", "_sent_headers", "_settings_received"),
        *("_streams", "_stream_send_window", "output", "ping_answered"),
    )

    def __init__(self, limits: H2Limits, now_s: float) -> None:
        self._limits = limits
        self._frames = FrameReader()
        self._preface = frames.PREFACE
        self._decoder = decoder(limits.header_bytes)
        self._control = FrameBudget(limits.control_frames, now_s)
        self._resets = FrameBudget(limits.resets, now_s)
        self._streams: dict[int, _StreamState] = {}
        self._reset_streams: dict[int, None] = {}
        self._last_stream = 0
        self._block: _HeaderBlock | None = None
        self._settings_received = False
        self._sent_headers = False
        self._max_frame = frames.DEFAULT_FRAME_BYTES
        self._receive_window = limits.connection_window
        self._send_window = frames.DEFAULT_WINDOW
        self._stream_send_window = frames.DEFAULT_WINDOW
        self.ping_answered = True
        """False after ``ping`` until its answer."""
        self.output: list[bytes | memoryview] = [
            frames.settings(
                {
                    frames.MAX_CONCURRENT_STREAMS: limits.streams,
                    frames.INITIAL_WINDOW_SIZE: limits.window,
                    frames.MAX_HEADER_LIST_SIZE: limits.header_bytes,
                }
            ),
            frames.window_update(0, limits.connection_window - frames.DEFAULT_WINDOW),
        ]
        """What to send, in order; the caller clears it."""

    # -- receiving -----------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the peer has sent its preface and settings."""
        return self._settings_received

    @property
    def streams(self) -> Iterable[int]:
        """Streams that are not closed."""
        return tuple(self._streams)

    def receive(self, data: bytes, now_s: float) -> list[Event]:
        """Events of these bytes; ``H2Error`` ends the connection, and events before the error are lost."""
        if self._preface:
            size = min(len(data), len(self._preface))
            if data[:size] != self._preface[:size]:
                raise self._failed(ErrorCode.PROTOCOL_ERROR, "not HTTP/2")
            self._preface, data = self._preface[size:], data[size:]
        events: list[Event] = []
        try:
            for one in self._frames.feed(data):
                self._take(one, events, now_s)
        except H2Error as error:
            self.output.append(frames.go_away(self._last_stream, error.code, str(error)))
            raise
        return events

    def small_frame(self, size: int, now_s: float) -> None:
        """Charge a DATA frame that completed no message, if it is small; ``H2Error`` for too many."""
        if size < SMALL_FRAME_BYTES and not self._control.take(1, now_s):
            raise self._failed(ErrorCode.ENHANCE_YOUR_CALM, "too many small frames")

    def _failed(self, code: ErrorCode, text: str) -> H2Error:
        self.output.append(frames.go_away(self._last_stream, code, text))
        return H2Error(code, text)

    def _take(self, one: Frame, events: list[Event], now_s: float) -> None:
        kind, stream = one.kind, one.stream
        self._check(one)
        if kind == frames.DATA:
            self._data(one, events, now_s)
        elif kind == frames.WINDOW_UPDATE:
            self._window_update(stream, frames.uint31(one.payload), events, now_s)
        elif kind == frames.HEADERS:
            self._headers(one, events, now_s)
        elif kind == frames.CONTINUATION:
            self._continuation(one, events, now_s)
        elif kind == frames.RST_STREAM:
            self._reset_by_peer(stream, frames.uint31(one.payload), events, now_s)
        else:
            self._charge(now_s)
            if kind == frames.SETTINGS:
                self._settings(one, events, now_s)
            elif kind == frames.PING:
                self._ping(one)
            elif kind == frames.PRIORITY and frames.uint31(one.payload) == stream:
                self._reset_for(stream, ErrorCode.PROTOCOL_ERROR, events, now_s)
            # Other priorities, GOAWAY and unknown types change nothing.

    def _check(self, one: Frame) -> None:
        """Errors of any frame."""
        kind, stream, size = one.kind, one.stream, len(one.payload)
        block = self._block
        if block is not None and (kind != frames.CONTINUATION or stream != block.stream):
            raise H2Error(ErrorCode.PROTOCOL_ERROR, "a frame within a header block")
        if block is None and kind == frames.CONTINUATION:
            raise H2Error(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        if not self._settings_received and (kind != frames.SETTINGS or one.flags & frames.ACK):
            raise H2Error(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if (stream == 0 and kind in _OF_STREAMS) or (stream and kind in _OF_CONNECTIONS):
            raise H2Error(ErrorCode.PROTOCOL_ERROR, f"frame of type {kind} on stream {stream}")
        if kind == frames.PUSH_PROMISE:
            raise H2Error(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE from a client")
        if size != _SIZES.get(kind, size) or (kind == frames.GOAWAY and size < 8):
            raise H2Error(ErrorCode.FRAME_SIZE_ERROR, f"frame of type {kind} with {size} bytes")

    def _charge(self, now_s: float, count: float = 1) -> None:
        if not self._control.take(count, now_s):
            raise H2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many control frames")

    def _state_of(self, stream: int) -> _StreamState | None:
        """State of a stream; None if it is closed. ``H2Error`` if it was never opened."""
        state = self._streams.get(stream)
        if state is None and (stream > self._last_stream or not stream & 1):
            raise H2Error(ErrorCode.PROTOCOL_ERROR, f"stream {stream} is idle")
        return state

    def _data(self, one: Frame, events: list[Event], now_s: float) -> None:
        stream, size = one.stream, len(one.payload)
        if size > self._receive_window:
            raise H2Error(ErrorCode.FLOW_CONTROL_ERROR, "more data than the window of the connection")
        self._receive_window -= size
        if self._receive_window < self._limits.connection_window // 2:
            self.output.append(frames.window_update(0, self._limits.connection_window - self._receive_window))
            self._receive_window = self._limits.connection_window
        state = self._state_of(stream)
        if state is None or state.remote_ended:
            self._after_end(stream, state, events, now_s)
            return
        data = frames.unpadded(one.flags, one.payload)
        ended = bool(one.flags & frames.END_STREAM)
        if not data and not ended:
            self._charge(now_s)
        if size > state.receive_window:
            self._reset_for(stream, ErrorCode.FLOW_CONTROL_ERROR, events, now_s)
            return
        state.receive_window -= size
        if size > len(data):
            self.release(stream, size - len(data))
        if ended:
            self._end_remote(stream, state)
        if data or ended:
            events.append(DataReceived(stream, data, ended))

    def _after_end(self, stream: int, state: _StreamState | None, events: list[Event], now_s: float) -> None:
        """DATA or HEADERS on a stream whose peer has ended it."""
        self._charge(now_s)
        if state is not None:
            self._reset_for(stream, ErrorCode.STREAM_CLOSED, events, now_s)
        elif stream not in self._reset_streams:
            raise H2Error(ErrorCode.STREAM_CLOSED, f"stream {stream} has ended")

    def _window_update(self, stream: int, increment: int, events: list[Event], now_s: float) -> None:
        self._charge(now_s)
        if stream == 0:
            if not increment or self._send_window + increment > frames.MAX_WINDOW:
                code = ErrorCode.FLOW_CONTROL_ERROR if increment else ErrorCode.PROTOCOL_ERROR
                raise H2Error(code, f"window update of {increment}")
            self._send_window += increment
            events.append(SendWindowOpened(0))
            return
        state = self._state_of(stream)
        if state is None:
            return
        if not increment or state.send_window + increment > frames.MAX_WINDOW:
            code = ErrorCode.FLOW_CONTROL_ERROR if increment else ErrorCode.PROTOCOL_ERROR
            self._reset_for(stream, code, events, now_s)
            return
        state.send_window += increment
        events.append(SendWindowOpened(stream))

    def _headers(self, one: Frame, events: list[Event], now_s: float) -> None:
        payload = frames.unpadded(one.flags, one.payload)
        if one.flags & frames.HAS_PRIORITY:
            if len(payload) < _PRIORITY_BYTES:
                raise H2Error(ErrorCode.FRAME_SIZE_ERROR, "HEADERS without their priority")
            if frames.uint31(payload) == one.stream:
                # Of a stream, by the RFC; the block must be decoded nevertheless, which this ends.
                raise H2Error(ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")
            payload = payload[_PRIORITY_BYTES:]
        self._block = _HeaderBlock(one.stream, ended=bool(one.flags & frames.END_STREAM))
        self._add_to_block(payload, one.flags, events, now_s)

    def _continuation(self, one: Frame, events: list[Event], now_s: float) -> None:
        if not one.payload:
            self._charge(now_s)
        self._add_to_block(one.payload, one.flags, events, now_s)

    def _add_to_block(self, payload: bytes, flags: int, events: list[Event], now_s: float) -> None:
        block, limits = self._block, self._limits
        if block is None:
            return  # checked before
        block.parts.append(payload)
        block.size += len(payload)
        block.frame_count += 1
        if block.size > limits.header_bytes or block.frame_count > limits.header_frames:
            raise H2Error(ErrorCode.ENHANCE_YOUR_CALM, f"headers above {limits.header_bytes} bytes")
        if flags & frames.END_HEADERS:
            self._block = None
            headers = decode(self._decoder, b"".join(block.parts))
            if block.stream > self._last_stream:
                self._open(block, headers, events, now_s)
            else:
                self._trailers(block, headers, events, now_s)

    def _open(
        self, block: _HeaderBlock, headers: list[tuple[bytes, bytes]], events: list[Event], now_s: float
    ) -> None:
        stream, limits = block.stream, self._limits
        if not stream & 1:
            raise H2Error(ErrorCode.PROTOCOL_ERROR, f"stream {stream} is not a client's")
        self._last_stream = stream
        state = self._streams[stream] = _StreamState(limits.window, self._stream_send_window)
        if len(self._streams) > limits.streams:
            self._reset_for(stream, ErrorCode.REFUSED_STREAM, events, now_s)
            return
        try:
            head = request_head(headers)
        except MalformedRequestError:
            self._reset_for(stream, ErrorCode.PROTOCOL_ERROR, events, now_s)
            return
        state.remote_ended = block.ended
        events.append(RequestReceived(stream, head, block.ended))

    def _trailers(
        self, block: _HeaderBlock, headers: list[tuple[bytes, bytes]], events: list[Event], now_s: float
    ) -> None:
        stream = block.stream
        state = self._state_of(stream)
        if state is None or state.remote_ended:
            self._after_end(stream, state, events, now_s)
            return
        try:
            check_trailers(headers)
        except MalformedRequestError:
            self._reset_for(stream, ErrorCode.PROTOCOL_ERROR, events, now_s)
            return
        if not block.ended:
            self._reset_for(stream, ErrorCode.PROTOCOL_ERROR, events, now_s)
            return
        self._end_remote(stream, state)
        events.append(DataReceived(stream, b"", True))

    def _reset_by_peer(self, stream: int, code: int, events: list[Event], now_s: float) -> None:
        state = self._state_of(stream)
        self._charge_reset(now_s)
        if state is not None:
            del self._streams[stream]
            events.append(StreamClosed(stream, code))

    def _reset_for(self, stream: int, code: ErrorCode, events: list[Event], now_s: float) -> None:
        """Reset a stream because of its peer's error."""
        self._charge_reset(now_s)
        known = stream in self._streams
        self.reset(stream, code)
        if known:
            events.append(StreamClosed(stream, code))

    def _charge_reset(self, now_s: float) -> None:
        if not self._resets.take(1, now_s):
            raise H2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many streams were reset")

    def _settings(self, one: Frame, events: list[Event], now_s: float) -> None:
        size = len(one.payload)
        if one.flags & frames.ACK:
            if size:
                raise H2Error(ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS with values")
            return
        if size % 6:
            raise H2Error(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS with {size} bytes")
        self._charge(now_s, size / 6)
        self._settings_received = True
        for name, value in frames.setting_values(one.payload):
            if name == frames.INITIAL_WINDOW_SIZE:
                self._change_windows(value, events)
            elif name == frames.MAX_FRAME_SIZE:
                if not frames.DEFAULT_FRAME_BYTES <= value < 2**24:
                    raise H2Error(ErrorCode.PROTOCOL_ERROR, f"maximum frame size of {value}")
                self._max_frame = value
            elif name == frames.ENABLE_PUSH and value > 1:
                raise H2Error(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH of {value}")
            # Without a dynamic table the peer's HEADER_TABLE_SIZE does not concern us.
        self.output.append(frames.frame(frames.SETTINGS, frames.ACK, 0))

    def _change_windows(self, value: int, events: list[Event]) -> None:
        """A new initial window changes those of open streams too, even to below zero."""
        change = value - self._stream_send_window
        if value > frames.MAX_WINDOW:
            raise H2Error(ErrorCode.FLOW_CONTROL_ERROR, f"initial window of {value}")
        for state in self._streams.values():
            if state.send_window + change > frames.MAX_WINDOW:
                raise H2Error(ErrorCode.FLOW_CONTROL_ERROR, f"initial window of {value}")
            state.send_window += change
        self._stream_send_window = value
        if change > 0:
            events.append(SendWindowOpened(0))

    def _ping(self, one: Frame) -> None:
        if one.flags & frames.ACK:
            self.ping_answered = True
        else:
            self.output.append(frames.frame(frames.PING, frames.ACK, 0, one.payload))

    def _end_remote(self, stream: int, state: _StreamState) -> None:
        state.remote_ended = True
        if state.local_ended:
            self._streams.pop(stream, None)

    # -- sending -------------------------------------------------------------------------------------------

    def release(self, stream: int, size: int) -> None:
        """Let the peer of a stream send this many bytes more. No-op if the stream is closed."""
        state = self._streams.get(stream)
        if state is None or state.remote_ended:
            return
        state.unreleased += size
        if state.unreleased >= self._limits.window // 2:
            self.output.append(frames.window_update(stream, state.unreleased))
            state.receive_window += state.unreleased
            state.unreleased = 0

    def send_headers(self, stream: int, block: bytes, *, ended: bool = False) -> None:
        """Send headers or trailers; ``ended`` ends the stream. No-op if it is closed."""
        state = self._streams.get(stream)
        if state is None:
            return
        if not self._sent_headers:
            self._sent_headers, block = True, EMPTY_TABLE + block
        flags = frames.END_HEADERS | (frames.END_STREAM if ended else 0)
        self.output.append(frames.frame(frames.HEADERS, flags, stream, block))
        if ended:
            state.local_ended = True
            if state.remote_ended:
                del self._streams[stream]
            else:
                # What the peer still sends is not read. Source: RFC 9113, 8.1.
                self.reset(stream, ErrorCode.NO_ERROR)

    def send_data(self, stream: int, data: bytes | memoryview, most: int) -> int:
        """Send as much of ``data`` as the windows allow, at most ``most`` bytes; returns how much.

        A part is at least ``MIN_FRAGMENT`` bytes or the rest.
        """
        state = self._streams.get(stream)
        if state is None:
            return 0
        size = len(data)
        room = min(state.send_window, self._send_window, most, size)
        if room < size and room < MIN_FRAGMENT:
            return 0
        state.send_window -= room
        self._send_window -= room
        if room == size <= self._max_frame:
            self.output.append(frames.frame_header(frames.DATA, 0, stream, size))
            self.output.append(data)
            self._control.earn(self._limits.paid_per_frame)
            return size
        view = memoryview(data)
        for at in range(0, room, self._max_frame):
            part = view[at : min(at + self._max_frame, room)]
            self.output.append(frames.frame_header(frames.DATA, 0, stream, len(part)))
            self.output.append(part)
            self._control.earn(self._limits.paid_per_frame)
        return room

    def reset(self, stream: int, code: ErrorCode) -> None:
        """Reset a stream; later frames of its peer are ignored."""
        self._streams.pop(stream, None)
        self.output.append(frames.reset(stream, code))
        self._reset_streams[stream] = None
        if len(self._reset_streams) > _KEPT_RESETS:
            del self._reset_streams[next(iter(self._reset_streams))]

    def ping(self) -> None:
        """Ask the peer for a sign of life."""
        self.ping_answered = False
        self.output.append(frames.frame(frames.PING, 0, 0, b"alive?  "))

    def go_away(self, code: ErrorCode = ErrorCode.NO_ERROR, text: str = "") -> None:
        """Announce that no further streams are served."""
        self.output.append(frames.go_away(self._last_stream, code, text))
