"""Fields of undecoded messages: counted as the decoder finds them, and only up to a limit."""

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.telemetry.access_log_service import AccessLogs
from xds_server.wire.field_count import count_fields
from xds_server.wire.varint import delimited


@given(st.lists(st.integers(0, 2**40), max_size=30), st.text(max_size=200))
def test_fields_along_a_path_are_counted(durations: list[int], name: str) -> None:
    message = AccessLogs()
    message.identifier.log_name = name
    for seconds in durations:
        message.http_logs.log_entry.add().common_properties.duration.seconds = seconds
    message.http_logs.SetInParent()
    assert count_fields(message.SerializeToString(), (2,), 1_000) == 2 + len(durations)
    assert count_fields(message.SerializeToString(), (), 1_000) == 2


def test_counting_ends_above_the_limit() -> None:
    data = delimited(2, b"\x0a\x00" * 2_000_000)
    began_s = time.thread_time()
    assert count_fields(data, (2,), 100) == 101
    assert time.thread_time() - began_s < 0.1


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x05a", b"\x0b\x0c", b"\x80", b"\x80" * 20, b"\x09\x00", b"\x0d"])
def test_data_that_is_not_protobuf_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"truncated|wire type|varint"):
        count_fields(data, (1,), 100)


@given(st.binary(max_size=200), st.lists(st.integers(1, 5), max_size=3))
def test_any_bytes_are_counted_or_refused(data: bytes, path: list[int]) -> None:
    with contextlib.suppress(ValueError):
        assert 0 <= count_fields(data, path, 50) <= 51
