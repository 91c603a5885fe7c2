"""Frames: any chunking gives the same frames, and nothing else than ``H2Error`` is ever raised."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.transport.h2 import ErrorCode, H2Error, frames
from xds_server.transport.h2.frames import Frame, FrameReader

FRAMES = st.lists(
    st.builds(
        Frame,
        kind=st.integers(0, 255),
        flags=st.integers(0, 255),
        stream=st.integers(0, 2**31 - 1),
        payload=st.binary(max_size=300),
    ),
    max_size=8,
)


def chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[begin:end] for begin, end in itertools.pairwise(at)]


@given(FRAMES, st.lists(st.integers(0, 10_000)))
def test_any_chunking_gives_the_same_frames(sent: list[Frame], cuts: list[int]) -> None:
    encoded = b"".join(frames.frame(*one) for one in sent)
    reader = FrameReader()
    assert [one for part in chunks(encoded, cuts) for one in reader.feed(part)] == sent


@given(st.binary(max_size=2_000), st.lists(st.integers(0, 2_000)))
def test_random_bytes_are_frames_or_an_error(encoded: bytes, cuts: list[int]) -> None:
    def outcome(parts: list[bytes]) -> tuple[list[Frame], ErrorCode | None]:
        reader, found = FrameReader(), []
        try:
            for part in parts:
                for one in reader.feed(part):
                    found.append(one)  # noqa: PERF402 -- those before an error count
        except H2Error as error:
            return found, error.code
        return found, None

    assert outcome([encoded]) == outcome(chunks(encoded, cuts))


def test_frame_above_the_limit_is_refused_at_its_header() -> None:
    header = frames.frame_header(frames.DATA, 0, 1, frames.DEFAULT_FRAME_BYTES + 1)
    with pytest.raises(H2Error) as refused:
        list(FrameReader().feed(header))
    assert refused.value.code is ErrorCode.FRAME_SIZE_ERROR


def test_reserved_bit_of_the_stream_is_ignored() -> None:
    encoded = frames.frame(frames.PING, 0, 0, bytes(8))
    (found,) = FrameReader().feed(encoded[:5] + b"\x80" + encoded[6:])
    assert found.stream == 0


@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x05abcd", b"\xff" * 255])
def test_padding_longer_than_its_payload_is_an_error(payload: bytes) -> None:
    with pytest.raises(H2Error):
        frames.unpadded(frames.PADDED, payload)


def test_padding_is_removed() -> None:
    assert frames.unpadded(frames.PADDED, b"\x02data\0\0") == b"data"
    assert frames.unpadded(frames.PADDED, b"\x00") == b""
    assert frames.unpadded(0, b"\x02data") == b"\x02data"
