"""One connection: what RFC 9113 requires of a server, section by section."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.xds_server.transport.h2.h2_peer import HEADERS, OPENING, block, data, opened, request, written
from tests.xds_server.transport.h2.test_frames import chunks
from xds_server.transport.h2 import (
    DataReceived,
    ErrorCode,
    H2Connection,
    H2Error,
    H2Limits,
    RequestReceived,
    SendWindowOpened,
    StreamClosed,
    frames,
)
from xds_server.transport.h2.connection import Event
from xds_server.transport.h2.header_blocks import RESPONSE, RequestHead, trailers

HEAD = RequestHead("POST", "/service/Method", "application/grpc")
PING = frames.frame(frames.PING, 0, 0, b"12345678")
BIG = b"x" * frames.DEFAULT_FRAME_BYTES


def error_of(sent: bytes, connection: H2Connection | None = None) -> ErrorCode:
    """Code with which these bytes end their connection; GOAWAY announces it."""
    connection = connection or opened()
    with pytest.raises(H2Error) as refused:
        connection.receive(sent, 0.0)
    last = written(connection)[-1]
    assert last.kind == frames.GOAWAY
    assert int.from_bytes(last.payload[4:8], "big") == refused.value.code
    return refused.value.code


def reset_of(sent: bytes, connection: H2Connection | None = None, *, stream: int = 1) -> ErrorCode:
    """Code with which these bytes end their stream, and nothing else."""
    connection = connection or opened()
    connection.receive(sent, 0.0)
    (found,) = [one for one in written(connection) if one.kind == frames.RST_STREAM]
    assert found.stream == stream
    assert connection.receive(PING, 0.0) == []
    assert [one.kind for one in written(connection)] == [frames.PING], "the connection continues"
    return ErrorCode(int.from_bytes(found.payload, "big"))


# -- 3.4 preface, 4 frames ---------------------------------------------------------------------------------


def test_settings_come_first_and_are_acknowledged() -> None:
    made = H2Connection(H2Limits(streams=7), 0.0)
    first, second = written(made)
    assert first.kind == frames.SETTINGS
    assert dict(frames.setting_values(first.payload)) == {
        frames.MAX_CONCURRENT_STREAMS: 7,
        frames.INITIAL_WINDOW_SIZE: 65_535,
        frames.MAX_HEADER_LIST_SIZE: 16_384,
    }
    assert (second.kind, second.stream) == (frames.WINDOW_UPDATE, 0)
    assert not made.is_open
    made.receive(OPENING, 0.0)
    assert made.is_open
    assert written(made) == [frames.Frame(frames.SETTINGS, frames.ACK, 0, b"")]


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rX", b"\x16\x03\x01"])
def test_other_protocols_are_refused(sent: bytes) -> None:
    assert error_of(sent, H2Connection(H2Limits(), 0.0)) is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize("first", [PING, request(), frames.frame(frames.SETTINGS, frames.ACK, 0)])
def test_first_frame_must_be_settings(first: bytes) -> None:
    assert error_of(frames.PREFACE + first, H2Connection(H2Limits(), 0.0)) is ErrorCode.PROTOCOL_ERROR


def test_preface_may_arrive_byte_by_byte() -> None:
    made = H2Connection(H2Limits(), 0.0)
    for at in range(len(OPENING)):
        assert made.receive(OPENING[at : at + 1], 0.0) == []
    assert made.is_open


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (frames.PING, 7),
        (frames.PING, 9),
        (frames.SETTINGS, 5),
        (frames.RST_STREAM, 3),
        (frames.WINDOW_UPDATE, 5),
        (frames.PRIORITY, 4),
        (frames.GOAWAY, 7),
    ],
)
def test_wrong_size_ends_the_connection(kind: int, size: int) -> None:
    stream = 1 if kind in (frames.RST_STREAM, frames.PRIORITY) else 0
    made = opened()
    made.receive(request(), 0.0)
    assert error_of(frames.frame(kind, 0, stream, bytes(size)), made) is ErrorCode.FRAME_SIZE_ERROR


@pytest.mark.parametrize(
    ("kind", "stream"),
    [
        (frames.DATA, 0),
        (frames.HEADERS, 0),
        (frames.PRIORITY, 0),
        (frames.RST_STREAM, 0),
        (frames.SETTINGS, 1),
        (frames.PING, 1),
        (frames.GOAWAY, 1),
    ],
)
def test_frame_on_the_wrong_kind_of_stream_ends_the_connection(kind: int, stream: int) -> None:
    size = {frames.PRIORITY: 5, frames.RST_STREAM: 4, frames.PING: 8, frames.GOAWAY: 8}.get(kind, 0)
    assert error_of(frames.frame(kind, 0, stream, bytes(size))) is ErrorCode.PROTOCOL_ERROR


def test_unknown_types_and_priorities_are_ignored() -> None:
    made = opened()
    priority = frames.frame(frames.PRIORITY, 0, 3, bytes(5))
    assert made.receive(frames.frame(0x10, 0xFF, 5, b"who knows") + priority, 0.0) == []
    assert made.output == []


def test_push_promise_is_refused() -> None:
    assert error_of(frames.frame(frames.PUSH_PROMISE, 0, 1, bytes(4))) is ErrorCode.PROTOCOL_ERROR


# -- 5 streams ---------------------------------------------------------------------------------------------


def test_request_data_and_end() -> None:
    made = opened()
    events = made.receive(request() + data(1, b"one") + data(1, b"two", ended=True), 0.0)
    assert events == [
        RequestReceived(1, HEAD, False),
        DataReceived(1, b"one", False),
        DataReceived(1, b"two", True),
    ]
    made.send_headers(1, RESPONSE)
    made.send_headers(1, trailers(0, "", only=False), ended=True)
    assert [one.kind for one in written(made)] == [frames.HEADERS, frames.HEADERS]
    assert made.streams == ()


def test_server_that_ends_first_resets_without_error() -> None:
    made = opened()
    made.receive(request(), 0.0)
    made.send_headers(1, trailers(3, "no", only=True), ended=True)
    headers, reset = written(made)
    assert headers.flags & frames.END_STREAM
    assert (reset.kind, reset.payload) == (frames.RST_STREAM, bytes(4))
    assert (
        made.receive(data(1, b"late") + frames.window_update(1, 5) + frames.reset(1, ErrorCode.CANCEL), 0.0) == []
    )
    assert made.output == [], "what the peer sent before it knew is ignored"


@pytest.mark.parametrize("stream", [2, 4])
def test_streams_of_servers_are_refused(stream: int) -> None:
    assert error_of(request(stream)) is ErrorCode.PROTOCOL_ERROR


def test_stream_numbers_never_decrease() -> None:
    made = opened()
    made.receive(request(5), 0.0)
    assert error_of(request(3), made) is ErrorCode.STREAM_CLOSED


@pytest.mark.parametrize(
    "sent", [data(1, b""), frames.window_update(1, 1), frames.reset(1, ErrorCode.CANCEL), data(4, b"")]
)
def test_frames_on_idle_streams_end_the_connection(sent: bytes) -> None:
    assert error_of(sent) is ErrorCode.PROTOCOL_ERROR


def test_data_after_the_end_resets_the_stream() -> None:
    assert reset_of(request(ended=True) + data(1, b"more")) is ErrorCode.STREAM_CLOSED


def test_data_on_a_closed_stream_ends_the_connection() -> None:
    made = opened()
    made.receive(request() + frames.reset(1, ErrorCode.CANCEL), 0.0)
    assert error_of(data(1, b"more"), made) is ErrorCode.STREAM_CLOSED


def test_streams_above_the_limit_are_refused_and_their_headers_decoded() -> None:
    made = opened(H2Limits(streams=1))
    made.receive(request(1), 0.0)
    assert reset_of(request(3), made, stream=3) is ErrorCode.REFUSED_STREAM
    made.receive(frames.reset(1, ErrorCode.CANCEL), 0.0)
    assert made.receive(request(5), 0.0) == [RequestReceived(5, HEAD, False)]


def test_reset_by_the_peer_is_reported_once() -> None:
    made = opened()
    made.receive(request(), 0.0)
    assert made.receive(frames.reset(1, ErrorCode.CANCEL), 0.0) == [StreamClosed(1, ErrorCode.CANCEL)]
    assert made.receive(frames.reset(1, ErrorCode.CANCEL), 0.0) == []


# -- 6.9 flow control --------------------------------------------------------------------------------------


def test_peer_may_send_what_was_released() -> None:
    made = opened()
    made.receive(request(), 0.0)
    for _ in range(3):
        made.receive(data(1, BIG), 0.0)
    assert made.output == []
    made.release(1, 2 * len(BIG))
    (update,) = written(made)
    assert (update.kind, update.stream, frames.uint31(update.payload)) == (frames.WINDOW_UPDATE, 1, 2 * len(BIG))
    assert reset_of(data(1, BIG) * 3, made) is ErrorCode.FLOW_CONTROL_ERROR


def test_connection_window_is_released_at_once_and_limited() -> None:
    made = opened(H2Limits(connection_window=65_535))
    made.receive(request(1) + request(3), 0.0)
    made.receive(data(1, BIG) * 2, 0.0)
    made.receive(data(3, BIG), 0.0)
    assert [(one.stream, frames.uint31(one.payload)) for one in written(made)] == [(0, 3 * len(BIG))]
    connection = H2Connection(H2Limits(connection_window=65_535), 0.0)
    connection.receive(OPENING, 0.0)
    connection._receive_window = 10  # as if it had not been released
    assert error_of(request(1) + data(1, bytes(11)), connection) is ErrorCode.FLOW_CONTROL_ERROR


def test_padding_counts_and_is_released() -> None:
    made = opened()
    made.receive(request(), 0.0)
    padded = frames.frame(frames.DATA, frames.PADDED, 1, b"\xff" + b"x" * 10 + bytes(255))
    events = made.receive(padded * 200, 0.0)
    assert events == [DataReceived(1, b"x" * 10, False)] * 200
    assert any(one.stream == 1 for one in written(made)), "padding alone opens the window again"


def test_message_waits_for_the_windows() -> None:
    made = opened()
    made.receive(request(), 0.0)
    assert made.send_data(1, bytes(100_000), 1_000_000) == 65_535
    assert [len(one.payload) for one in written(made)] == [16_384, 16_384, 16_384, 16_383]
    assert made.send_data(1, bytes(10), 1_000_000) == 0
    assert made.receive(frames.window_update(1, 50_000), 0.0) == [SendWindowOpened(1)]
    assert made.send_data(1, bytes(34_465), 1_000_000) == 0, "the connection has no window"
    assert made.receive(frames.window_update(0, 50_000), 0.0) == [SendWindowOpened(0)]
    assert made.send_data(1, bytes(34_465), 10_000) == 10_000
    assert made.send_data(1, bytes(24_465), 1_000_000) == 24_465


def test_small_windows_split_no_message_into_crumbs() -> None:
    made = opened()
    made.receive(request() + frames.settings({frames.INITIAL_WINDOW_SIZE: 0}), 0.0)
    for _ in range(100):
        made.receive(frames.window_update(1, 1), 0.0)
        assert made.send_data(1, bytes(5_000), 1_000_000) == 0
    assert made.send_data(1, bytes(100), 1_000_000) == 100, "a whole message may be small"
    made.receive(frames.window_update(1, 1_024), 0.0)
    assert made.send_data(1, bytes(5_000), 1_000_000) == 1_024


def test_settings_change_open_windows_even_below_zero() -> None:
    made = opened()
    made.receive(request(), 0.0)
    assert made.send_data(1, bytes(20_000), 1_000_000) == 20_000
    made.receive(frames.settings({frames.INITIAL_WINDOW_SIZE: 10_000}), 0.0)
    assert made.send_data(1, bytes(100), 1_000_000) == 0
    made.receive(frames.window_update(1, 10_000), 0.0)
    assert made.send_data(1, bytes(100), 1_000_000) == 0, "the window is exactly 0"
    assert made.receive(frames.settings({frames.INITIAL_WINDOW_SIZE: 11_000}), 0.0) == [SendWindowOpened(0)]
    assert made.send_data(1, bytes(100), 1_000_000) == 100


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frames.window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
        (frames.window_update(0, frames.MAX_WINDOW), ErrorCode.FLOW_CONTROL_ERROR),
        (frames.settings({frames.INITIAL_WINDOW_SIZE: 2**31}), ErrorCode.FLOW_CONTROL_ERROR),
        (frames.settings({frames.MAX_FRAME_SIZE: 16_383}), ErrorCode.PROTOCOL_ERROR),
        (frames.settings({frames.MAX_FRAME_SIZE: 2**24}), ErrorCode.PROTOCOL_ERROR),
        (frames.settings({frames.ENABLE_PUSH: 2}), ErrorCode.PROTOCOL_ERROR),
        (frames.frame(frames.SETTINGS, frames.ACK, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_invalid_windows_and_settings_end_the_connection(sent: bytes, code: ErrorCode) -> None:
    assert error_of(sent) is code


def test_window_of_a_stream_that_overflows_by_a_setting_ends_the_connection() -> None:
    made = opened()
    made.receive(request() + frames.window_update(1, frames.MAX_WINDOW - 65_535), 0.0)
    assert error_of(frames.settings({frames.INITIAL_WINDOW_SIZE: 65_536}), made) is ErrorCode.FLOW_CONTROL_ERROR


@pytest.mark.parametrize(
    ("increment", "code"),
    [(0, ErrorCode.PROTOCOL_ERROR), (frames.MAX_WINDOW, ErrorCode.FLOW_CONTROL_ERROR)],
)
def test_invalid_window_update_of_a_stream_resets_it(increment: int, code: ErrorCode) -> None:
    assert reset_of(request() + frames.window_update(1, increment)) is code


def test_larger_frames_are_used_where_the_peer_permits_them() -> None:
    made = opened()
    made.receive(request() + frames.settings({frames.MAX_FRAME_SIZE: 30_000}), 0.0)
    made.output.clear()
    assert made.send_data(1, bytes(40_000), 1_000_000) == 40_000
    assert [int.from_bytes(bytes(one)[:3], "big") for one in made.output[::2]] == [30_000, 10_000]


# -- 6.10, 8 headers ---------------------------------------------------------------------------------------


def test_headers_may_be_split_and_padded() -> None:
    encoded = block()
    made = opened()
    padded = b"\x03" + bytes(5) + encoded[:9] + bytes(3)
    first = frames.frame(frames.HEADERS, frames.PADDED | frames.HAS_PRIORITY, 1, padded)
    middle = frames.frame(frames.CONTINUATION, 0, 1, encoded[9:20])
    last = frames.frame(frames.CONTINUATION, frames.END_HEADERS, 1, encoded[20:])
    assert made.receive(first + middle + last, 0.0) == [RequestReceived(1, HEAD, False)]


@pytest.mark.parametrize(
    "sent",
    [
        frames.frame(frames.HEADERS, 0, 1, block()) + PING,
        frames.frame(frames.HEADERS, 0, 1, block()) + frames.frame(frames.CONTINUATION, 4, 3),
        frames.frame(frames.CONTINUATION, 4, 1),
        frames.frame(frames.HEADERS, 4 | frames.HAS_PRIORITY, 1, bytes(3)),
        frames.frame(frames.HEADERS, 4 | frames.HAS_PRIORITY, 1, b"\0\0\0\1\0" + block()),
    ],
)
def test_broken_header_frames_end_the_connection(sent: bytes) -> None:
    assert error_of(sent) in (ErrorCode.PROTOCOL_ERROR, ErrorCode.FRAME_SIZE_ERROR)


def test_broken_hpack_ends_the_connection() -> None:
    assert error_of(request(payload=b"\xff\xff\xff\xff\xff")) is ErrorCode.COMPRESSION_ERROR
    assert error_of(request(payload=b"\x40\x7f")) is ErrorCode.COMPRESSION_ERROR


MALFORMED = {
    "no path": [one for one in HEADERS if one[0] != ":path"],
    "empty path": [(name, "" if name == ":path" else value) for name, value in HEADERS],
    "two paths": [*HEADERS[:4], (":path", "/other"), *HEADERS[4:]],
    "late pseudo-header": [*HEADERS[1:], HEADERS[0]],
    "unknown pseudo-header": [(":status", "200"), *HEADERS],
    "upper case": [*HEADERS, ("X-Name", "x")],
    "space in a name": [*HEADERS, ("x name", "x")],
    "empty name": [*HEADERS, ("", "x")],
    "line in a value": [*HEADERS, ("x-name", "a\r\nx-other: b")],
    "nul in a value": [*HEADERS, ("x-name", "a\0b")],
    "connection": [*HEADERS, ("connection", "close")],
    "te": [*HEADERS, ("te", "gzip")],
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_request_resets_its_stream(name: str) -> None:
    assert reset_of(request(payload=block(MALFORMED[name]))) is ErrorCode.PROTOCOL_ERROR


def test_trailers_end_a_request() -> None:
    made = opened()
    made.receive(request(), 0.0)
    assert made.receive(request(ended=True, payload=block([("x-checksum", "1")])), 0.0) == [
        DataReceived(1, b"", True)
    ]


@pytest.mark.parametrize(
    "sent",
    [request(payload=block([("x-checksum", "1")])), request(ended=True, payload=block([(":path", "/")]))],
    ids=["without end", "with a pseudo-header"],
)
def test_invalid_trailers_reset_their_stream(sent: bytes) -> None:
    assert reset_of(request() + sent) is ErrorCode.PROTOCOL_ERROR


# -- random ------------------------------------------------------------------------------------------------

VALID = st.sampled_from(
    [
        *(request(one) for one in (1, 3, 5)),
        request(7, ended=True),
        *(data(one, b"x" * 40) for one in (1, 3, 5)),
        data(1, b"", ended=True),
        data(3, BIG),
        *(frames.window_update(one, 100) for one in (0, 1, 3)),
        *(frames.reset(one, ErrorCode.CANCEL) for one in (1, 3)),
        frames.settings({frames.INITIAL_WINDOW_SIZE: 100_000}),
        PING,
        frames.frame(frames.GOAWAY, 0, 0, bytes(8)),
    ]
)
ANY_FRAME = st.builds(
    frames.frame,
    st.integers(0, 10),
    st.integers(0, 255),
    st.sampled_from([0, 1, 2, 3, 5, 2**31 - 1]),
    st.binary(max_size=40),
)


def outcome(parts: list[bytes]) -> tuple[list[Event], bytes, ErrorCode | None]:
    """Events, output and error of a connection; after an error, without events, as its bytes may share a call."""
    made, events = H2Connection(H2Limits(), 0.0), []
    try:
        for part in parts:
            events += made.receive(part, 0.0)
    except H2Error as error:
        return [], b"".join(made.output), error.code
    return events, b"".join(made.output), None


@given(st.lists(st.one_of(VALID, ANY_FRAME), max_size=12), st.lists(st.integers(0, 100_000), max_size=20))
def test_any_chunking_gives_the_same_events(sent: list[bytes], cuts: list[int]) -> None:
    stream = OPENING + b"".join(sent)
    assert outcome([stream]) == outcome(chunks(stream, cuts))


@given(st.binary(max_size=600))
def test_random_bytes_raise_only_protocol_errors(sent: bytes) -> None:
    outcome([OPENING + sent])


@given(st.binary(max_size=200))
def test_random_header_blocks_raise_only_protocol_errors(encoded: bytes) -> None:
    outcome([OPENING + request(payload=encoded)])
