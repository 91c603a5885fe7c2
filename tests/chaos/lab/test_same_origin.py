"""Pages of other sites may not reach a lab."""

import pytest

from chaos.lab.same_origin import foreign_reason


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "[::1]:8000", "localhost"])
def test_own_pages_and_programs_are_accepted(host: str) -> None:
    assert foreign_reason(host, None) == ""
    assert foreign_reason(host, f"http://{host}") == ""


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:8000", "http://example.com"),
        ("127.0.0.1:8000", "http://127.0.0.1:9000"),
        ("127.0.0.1:8000", "https://127.0.0.1:8000"),
        ("127.0.0.1:8000", "null"),
        ("lab.example.com:8000", None),
        ("lab.example.com:8000", "http://lab.example.com:8000"),
        ("127.0.0.1.example.com", None),
        ("[::1", None),
        ("", None),
    ],
)
def test_others_are_refused(host: str, origin: str | None) -> None:
    assert foreign_reason(host, origin)
