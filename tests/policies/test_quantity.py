"""Durations as operators write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.quantity import MAX_DURATION_S, format_duration, parse_duration, parse_host, parse_re2


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("2s", 2), ("15m", 900), ("1h", 3600), ("1m30s", 90), ("0s", 0), ("1.5s", 1.5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "value",
    [
        "",
        "5",
        "5 s",
        "s",
        "-5s",
        "5d",
        "1e3s",
        "٣s",
        True,
        None,
        [],
        5,
        5.0,
        -5,
        float("inf"),
        pytest.param(10**400, id="400 digits"),
        "9" * 400 + "h",
    ],
)
def test_invalid_duration_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"duration|longer than"):
        parse_duration(value)


@given(milliseconds=st.integers(0, int(MAX_DURATION_S) * 1000))
def test_a_duration_survives_being_written(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize(
    "text",
    [
        "a+",
        "^(a|b)$",
        r"\d{3}",
        r"[\x00-\x7f]+\z",
        "x{90}",
        r"\p{Greek}+",
        r"\pL\z",
        "(?i)batch",
        "(?P<n>x)",
        r"a\\1",
        "[[:alpha:]]",
    ],
)
def test_expressions_that_re2_takes(text: str) -> None:
    assert parse_re2(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "(?=a)b",
        "(?<=a)b",
        "(?<!a)b",
        r"(a)\1",
        "(?P=n)",
        "(",
        "[a",
        "*a",
        "a++",
        "(?>a)",
        "x{100}",
        "[a-z]{1,60}",
    ],
)
def test_expressions_that_re2_refuses(text: str) -> None:
    with pytest.raises(ValueError, match=r"RE2|not a regular expression"):
        parse_re2(text)


@pytest.mark.parametrize(
    ("text", "as_envoy_writes_it"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("FD00:0:0::7", "fd00::7"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("::ffff:0a00:7", "::ffff:10.0.0.7"),
        ("Engine.example", "Engine.example"),
    ],
)
def test_an_address_is_known_by_the_spelling_that_envoys_logs_have(text: str, as_envoy_writes_it: str) -> None:
    assert parse_host(text) == as_envoy_writes_it
