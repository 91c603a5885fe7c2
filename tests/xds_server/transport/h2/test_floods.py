"""Known attacks on HTTP/2 servers: each ends its connection with ENHANCE_YOUR_CALM, before it costs much."""

import itertools
from collections.abc import Iterator

import pytest
from hpack import Encoder

from tests.xds_server.transport.h2.h2_peer import HEADERS, data, opened, request, written
from xds_server.transport.h2 import ErrorCode, H2Connection, H2Error, H2Limits, frames
from xds_server.transport.h2.limits import CONTROL_FRAMES, RESETS

MANY = 100_000
PING = frames.frame(frames.PING, 0, 0, bytes(8))


def odd() -> Iterator[int]:
    return itertools.count(3, 2)


FLOODS = {
    "rapid reset": (request(one) + frames.reset(one, ErrorCode.CANCEL) for one in odd()),
    "provoked resets by window updates": (request(one) + frames.window_update(one, 0) for one in odd()),
    "provoked resets by data after the end": (request(one, ended=True) + data(one, b"x") for one in odd()),
    "provoked resets by malformed requests": (request(one, payload=b"\x82") for one in odd()),
    "provoked resets by an overflow": (
        request(one) + frames.window_update(one, frames.MAX_WINDOW) for one in odd()
    ),
    "ping": itertools.repeat(PING),
    "answers to no ping": itertools.repeat(frames.frame(frames.PING, frames.ACK, 0, bytes(8))),
    "settings": itertools.repeat(frames.settings({})),
    "settings with many values": itertools.repeat(
        frames.frame(frames.SETTINGS, 0, 0, b"\x00\x63\x00\x00\x00\x01" * 2_000)
    ),
    "acknowledged settings": itertools.repeat(frames.frame(frames.SETTINGS, frames.ACK, 0)),
    "priority": itertools.repeat(frames.frame(frames.PRIORITY, 0, 3, bytes(5))),
    "unknown frames": itertools.repeat(frames.frame(0x42, 0, 0, b"x" * 100)),
    "goaway": itertools.repeat(frames.frame(frames.GOAWAY, 0, 0, bytes(8))),
    "empty data": itertools.repeat(data(1, b"")),
    "data of padding": itertools.repeat(frames.frame(frames.DATA, frames.PADDED, 1, b"\x09" + bytes(9))),
    "window updates": itertools.repeat(frames.window_update(1, 1)),
    "window updates of the connection": itertools.repeat(frames.window_update(0, 1)),
    "data of closed streams": itertools.repeat(data(1, b"x")),
}


def flooded(connection: H2Connection, flood: Iterator[bytes], now_s: float = 0.0) -> tuple[ErrorCode, int, int]:
    """Code that ends the connection; frames received and bytes sent until then."""
    sent = 0
    for number, one in enumerate(itertools.islice(flood, MANY)):
        try:
            connection.receive(one, now_s)
        except H2Error as error:
            return error.code, number, sent + len(b"".join(connection.output))
        sent += len(b"".join(connection.output))
        connection.output.clear()
    pytest.fail(f"{MANY} frames were accepted")


@pytest.mark.parametrize("name", FLOODS)
def test_flood_ends_its_connection(name: str) -> None:
    made = opened()
    made.receive(request(1), 0.0)
    if name == "data of closed streams":
        made.reset(1, ErrorCode.CANCEL)
    code, count, sent = flooded(made, FLOODS[name])
    assert code is ErrorCode.ENHANCE_YOUR_CALM
    assert count <= max(CONTROL_FRAMES.burst, RESETS.burst)
    assert sent < 20_000, "answers are limited too"


def test_small_frames_end_their_connection() -> None:
    made = opened()
    for _ in range(int(CONTROL_FRAMES.burst) - 1):
        made.small_frame(1, 0.0)
    with pytest.raises(H2Error) as refused:
        made.small_frame(1, 0.0)
    assert refused.value.code is ErrorCode.ENHANCE_YOUR_CALM
    opened().small_frame(10_000, 0.0)


def test_continuation_flood_ends_at_a_few_frames() -> None:
    made = opened()
    made.receive(frames.frame(frames.HEADERS, 0, 1, b"\x82"), 0.0)
    endless = itertools.repeat(frames.frame(frames.CONTINUATION, 0, 1))
    assert flooded(made, endless)[:2] == (ErrorCode.ENHANCE_YOUR_CALM, H2Limits().header_frames - 1)


def test_header_block_above_its_limit_is_not_kept() -> None:
    made = opened()
    made.receive(frames.frame(frames.HEADERS, 0, 1, bytes(16_000)), 0.0)
    with pytest.raises(H2Error) as refused:
        made.receive(frames.frame(frames.CONTINUATION, 0, 1, bytes(16_000)), 0.0)
    assert refused.value.code is ErrorCode.ENHANCE_YOUR_CALM


def test_header_bomb_ends_its_connection() -> None:
    """One large entry of the dynamic table, and thousands of references to it of a byte each."""
    made, encoder = opened(), Encoder()
    first = encoder.encode([*HEADERS, ("x-bomb", "b" * 3_500)])
    made.receive(request(payload=first), 0.0)
    index = encoder.encode([("x-bomb", "b" * 3_500)])
    assert len(index) == 1
    with pytest.raises(H2Error) as refused:
        made.receive(request(3, payload=index * 10_000), 0.0)
    assert refused.value.code is ErrorCode.COMPRESSION_ERROR


def test_hpack_table_does_not_grow_beyond_the_default() -> None:
    made = opened()
    with pytest.raises(H2Error) as refused:
        made.receive(request(payload=b"\x3f\xe1\xff\x03"), 0.0)
    assert refused.value.code is ErrorCode.COMPRESSION_ERROR


def test_number_of_endless_length_in_headers_is_refused() -> None:
    for payload in (b"\x00\x7f" + b"\xff" * 16_000, b"\xff" * 16_000):
        with pytest.raises(H2Error):
            opened().receive(request(payload=payload), 0.0)


def test_honest_answers_to_what_we_send_are_paid_for() -> None:
    """An Envoy that gets a hundred large responses a second sends two window updates for each, and pings."""
    made = opened()
    made.receive(request(1), 0.0)
    for number in range(20_000):
        now_s = number / 100
        assert made.send_data(1, bytes(10_000), 100_000) == 10_000
        made.output.clear()
        updates = frames.window_update(1, 10_000) + frames.window_update(0, 10_000)
        made.receive(updates + (PING if number % 100 == 0 else b""), now_s)


def test_budget_returns_in_time() -> None:
    made = opened()
    for second in range(100):
        for _ in range(int(CONTROL_FRAMES.per_s)):
            made.receive(PING, float(second))
    assert written(made)


def test_burst_of_tokens_is_not_exceeded_after_long_silence() -> None:
    made = opened()
    for _ in range(400):
        made.receive(PING, 0.0)
    assert flooded(made, itertools.repeat(PING), 1e6)[1] <= 2 * CONTROL_FRAMES.burst
