"""IDs of failed requests: the newest, once each, and only valid ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.telemetry.tally import MAX_FAILED_REQUESTS, MAX_REQUEST_ID_CHARACTERS, FailedRequests

ENVOYS = "ae8c6734-2910-4c6f-a066-1196fc73bebd"


def test_failed_requests_are_newest_first_and_unique():
    found = FailedRequests()
    for number in range(MAX_FAILED_REQUESTS + 3):
        found.add(f"r-{number}", float(number))
        found.add(f"r-{number}", number + 0.5)  # its second try
    assert found.since(0.0) == tuple(f"r-{number}" for number in range(MAX_FAILED_REQUESTS + 2, 2, -1))
    assert found.since(MAX_FAILED_REQUESTS + 1.0) == (
        f"r-{MAX_FAILED_REQUESTS + 2}",
        f"r-{MAX_FAILED_REQUESTS + 1}",
    )


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-",
        "a b",
        "a\nb",
        "\x1b[31mred",
        "a\u202eb",
        "naïve",
        "a/b",
        "<b>",
        "'",
        "a" * (MAX_REQUEST_ID_CHARACTERS + 1),
        "a\n",
    ],
)
def test_invalid_request_ids_are_dropped(name: str):
    found = FailedRequests()
    found.add(name, 1.0)
    found.add(ENVOYS, 1.0)
    assert found.since(0.0) == (ENVOYS,)


@given(st.lists(st.text(max_size=80)))
def test_request_ids_are_printable_ascii(names: list[str]):
    found = FailedRequests()
    for name in names:
        found.add(name, 1.0)
    kept = found.since(0.0)
    assert len(kept) <= MAX_FAILED_REQUESTS
    assert all(
        0 < len(one) <= MAX_REQUEST_ID_CHARACTERS and one.isascii() and one.isprintable() and " " not in one
        for one in kept
    )
