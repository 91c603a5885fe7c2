"""gRPC messages in any pieces, and those that are refused."""

import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.xds_server.transport.h2.test_frames import chunks
from xds_server.transport.h2.grpc_messages import GrpcCode, GrpcMessageError, GrpcMessageReader, prefixed


def read(reader: GrpcMessageReader) -> list[bytes]:
    found = []
    while (message := reader.next_message()) is not None:
        found.append(message)
    return found


@given(st.lists(st.binary(max_size=100), max_size=10), st.lists(st.integers(0, 2_000)))
def test_any_chunking_gives_the_same_messages(sent: list[bytes], cuts: list[int]) -> None:
    reader, found = GrpcMessageReader(100), []
    for part in chunks(b"".join(map(prefixed, sent)), cuts):
        reader.append(part)
        found += read(reader)
    assert found == sent
    assert reader.held_bytes == 0


@given(st.binary(max_size=500), st.lists(st.integers(0, 500)))
def test_random_bytes_are_messages_or_an_error(encoded: bytes, cuts: list[int]) -> None:
    reader = GrpcMessageReader(200)
    try:
        for part in chunks(encoded, cuts):
            reader.append(part)
            read(reader)
    except GrpcMessageError as error:
        assert error.code is not GrpcCode.OK  # noqa: PT017 -- no error is an outcome, too


@pytest.mark.parametrize(
    ("prefix", "code"),
    [
        (struct.pack(">BL", 1, 10), GrpcCode.UNIMPLEMENTED),
        (struct.pack(">BL", 2, 10), GrpcCode.INTERNAL),
        (struct.pack(">BL", 0, 101), GrpcCode.RESOURCE_EXHAUSTED),
        (struct.pack(">BL", 0, 2**32 - 1), GrpcCode.RESOURCE_EXHAUSTED),
    ],
    ids=["compressed", "unknown flag", "too large", "4 GiB"],
)
def test_message_is_refused_at_its_prefix(prefix: bytes, code: GrpcCode) -> None:
    reader = GrpcMessageReader(100)
    reader.append(prefix)
    with pytest.raises(GrpcMessageError) as refused:
        reader.next_message()
    assert refused.value.code is code


def test_many_messages_in_one_piece_are_read_in_linear_time() -> None:
    def seconds(count: int) -> float:
        reader = GrpcMessageReader(100)
        reader.append(prefixed(b"x") * count)
        began_s = time.thread_time()
        assert len(read(reader)) == count
        return time.thread_time() - began_s

    seconds(1_000)
    assert seconds(200_000) < 100 * seconds(20_000), "ten times as many take some ten times as long"
