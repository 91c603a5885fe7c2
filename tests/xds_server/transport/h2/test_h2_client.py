"""The h2 library as client: it accepts all that our connection sends, and both agree on every byte of a stream."""

import pytest
from h2.events import (
    DataReceived as ClientData,
)
from h2.events import (
    PingAckReceived,
    ResponseReceived,
    StreamEnded,
    TrailersReceived,
)
from h2.events import (
    StreamReset as ClientReset,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.xds_server.transport.h2.h2_peer import HEADERS, Pair
from xds_server.transport.h2 import DataReceived, H2Limits, RequestReceived, StreamClosed
from xds_server.transport.h2.grpc_messages import GrpcCode, GrpcMessageReader, prefixed
from xds_server.transport.h2.header_blocks import RESPONSE, trailers

STREAMS = st.integers(0, 3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("request"), STREAMS, st.binary(max_size=40_000)),
        st.tuples(st.just("response"), STREAMS, st.binary(max_size=100_000)),
        st.tuples(st.just("finish"), STREAMS, st.sampled_from(GrpcCode)),
        st.tuples(st.just("cancel"), STREAMS, st.none()),
        st.tuples(st.just("end"), STREAMS, st.none()),
        st.tuples(st.just("ping"), STREAMS, st.none()),
        st.tuples(st.just("window"), STREAMS, st.integers(1_024, 100_000)),
    ),
    max_size=25,
)


class Conversation(Pair):
    """Streams with messages in both directions; what does not fit a window is sent later."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: dict[int, int] = {}
        self.sent_up: dict[int, bytes] = {}
        self.sent_down: dict[int, bytes] = {}
        self.waits_up: dict[int, bytes] = {}
        self.waits_down: dict[int, bytes] = {}
        self.closed: set[int] = set()
        self.ended_up: set[int] = set()

    def stream(self, slot: int) -> int:
        number = self.numbers.get(slot)
        if number is None or number in self.closed:
            number = self.numbers[slot] = self.client.get_next_available_stream_id()
            self.client.send_headers(number, HEADERS)
            self.sent_up[number] = self.sent_down[number] = b""
            self.waits_up[number] = self.waits_down[number] = b""
            self.settle()
            self.server.send_headers(number, RESPONSE)
        return number

    def settle(self) -> None:
        """Exchange until nothing moves."""
        moved = True
        while moved:
            moved = False
            for number in self.waits_up:
                data = self.waits_up[number]
                while data and number not in self.closed:
                    room = min(
                        len(data),
                        self.client.local_flow_control_window(number),
                        self.client.max_outbound_frame_size,
                    )
                    if not room:
                        break
                    self.client.send_data(number, data[:room])
                    data, moved = data[room:], True
                self.waits_up[number] = data
                rest = self.waits_down[number]
                while rest and number not in self.closed:
                    taken = self.server.send_data(number, rest, 30_000)
                    if not taken:
                        break
                    rest, moved = rest[taken:], True
                self.waits_down[number] = rest
            before = len(self.server_events), len(self.client_events)
            self.exchange()
            for event in self.server_events[before[0] :]:
                if isinstance(event, DataReceived):
                    self.server.release(event.stream, len(event.data))
            for event in self.client_events[before[1] :]:
                if isinstance(event, ClientData) and event.stream_id not in self.closed:
                    self.client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            self.exchange()

    def play(self, step: str, slot: int, value: object) -> None:
        number = self.stream(slot)
        if step == "request" and number not in self.ended_up:
            assert isinstance(value, bytes)
            self.sent_up[number] += prefixed(value)
            self.waits_up[number] += prefixed(value)
        elif step == "response":
            assert isinstance(value, bytes)
            self.sent_down[number] += prefixed(value)
            self.waits_down[number] += prefixed(value)
        elif step == "ping":
            self.client.ping(b"12345678")
        elif step == "window":
            assert isinstance(value, int)
            self.client.update_settings({4: value})
        self.settle()
        if step == "finish":
            assert isinstance(value, GrpcCode)
            self.server.send_headers(number, trailers(value, "why: é%\n", only=False), ended=True)
            self.closed.add(number)
        elif step == "cancel":
            self.client.reset_stream(number)
            self.closed.add(number)
        elif step == "end" and number not in self.ended_up and not self.waits_up[number]:
            self.client.end_stream(number)
            self.ended_up.add(number)
        self.settle()


@given(STEPS)
def test_both_sides_agree_on_what_was_sent(steps: list[tuple[str, int, object]]) -> None:
    talk = Conversation()
    for one in steps:
        talk.play(*one)
    for number, sent in talk.sent_up.items():
        got = b"".join(
            one.data for one in talk.server_events if isinstance(one, DataReceived) and one.stream == number
        )
        assert got == sent[: len(sent) - len(talk.waits_up[number])]
        down = b"".join(
            one.data for one in talk.client_events if isinstance(one, ClientData) and one.stream_id == number
        )
        assert down == talk.sent_down[number][: len(talk.sent_down[number]) - len(talk.waits_down[number])]
    assert set(talk.server.streams) == set(talk.numbers.values()) - talk.closed


def test_status_reaches_the_client() -> None:
    pair = Pair()
    pair.client.send_headers(1, HEADERS)
    pair.exchange()
    (received,) = pair.server_events
    assert isinstance(received, RequestReceived)
    pair.server.send_headers(1, RESPONSE)
    pair.server.send_data(1, prefixed(b"answer"), 1_000)
    pair.server.send_headers(1, trailers(GrpcCode.UNKNOWN, "50 % of it: é\n", only=False), ended=True)
    pair.exchange()
    kinds = [type(one) for one in pair.client_events if getattr(one, "stream_id", 0) == 1]
    assert kinds == [ResponseReceived, ClientData, TrailersReceived, StreamEnded, ClientReset]
    (found,) = [one for one in pair.client_events if isinstance(one, TrailersReceived)]
    assert found.headers is not None
    assert [tuple(one) for one in found.headers] == [
        ("grpc-status", "2"),
        ("grpc-message", "50 %25 of it: %C3%A9%0A"),
    ]


def test_status_without_a_response_is_one_header_block() -> None:
    pair = Pair()
    pair.client.send_headers(1, HEADERS)
    pair.exchange()
    pair.server.send_headers(1, trailers(GrpcCode.UNIMPLEMENTED, "no method", only=True), ended=True)
    pair.exchange()
    (found,) = [one for one in pair.client_events if isinstance(one, ResponseReceived)]
    assert found.headers is not None
    assert dict(tuple(one) for one in found.headers)["grpc-status"] == "12"


@pytest.mark.parametrize("size", [0, 4_096, 65_536])
def test_client_with_any_header_table_understands_our_headers(size: int) -> None:
    pair = Pair()
    pair.client.update_settings({1: size})
    for stream in (1, 3, 5):
        pair.client.send_headers(stream, HEADERS)
        pair.exchange()
        pair.server.send_headers(stream, trailers(GrpcCode.OK, "", only=True), ended=True)
        pair.exchange()
    assert sum(isinstance(one, StreamEnded) for one in pair.client_events) == 3


def test_ping_is_answered_and_asked() -> None:
    pair = Pair()
    pair.client.ping(b"12345678")
    pair.exchange()
    assert any(isinstance(one, PingAckReceived) and one.ping_data == b"12345678" for one in pair.client_events)
    pair.server.ping()
    assert not pair.server.ping_answered
    pair.exchange()
    assert pair.server.ping_answered


def test_cancelled_stream_is_reported() -> None:
    pair = Pair(H2Limits())
    pair.client.send_headers(1, HEADERS)
    pair.client.reset_stream(1)
    pair.exchange()
    assert isinstance(pair.server_events[-1], StreamClosed)


def test_messages_in_many_frames_are_whole() -> None:
    talk = Conversation()
    talk.play("request", 0, b"x" * 39_000)
    talk.play("request", 0, b"y" * 39_000)
    reader = GrpcMessageReader(50_000)
    for one in talk.server_events:
        if isinstance(one, DataReceived):
            reader.append(one.data)
    assert [reader.next_message(), reader.next_message()] == [b"x" * 39_000, b"y" * 39_000]
