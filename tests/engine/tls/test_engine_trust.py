"""Which certificate names are accepted, and the error for others."""

import re
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.tls.certificate_files import read_trust
from engine.tls.engine_trust import (
    ClientTlsCache,
    TrustBundle,
    TrustError,
    certificate_matches,
    engine_client_context,
    tls_failure,
)
from engine.tls.paths import TrustFiles
from policies.engine_tls import expression, is_uri
from tests.engine.tls.certificate_fixtures import certificate


def shown(*names: tuple[str, str]) -> dict[str, Any]:
    """A certificate as ``getpeercert`` gives it."""
    return {"subjectAltName": names}


@pytest.mark.parametrize(
    ("names", "asked_for", "will_do"),
    [
        ([("DNS", "engine.example")], "engine.example", True),
        ([("DNS", "Engine.Example")], "engine.EXAMPLE", True),
        ([("DNS", "other.example"), ("DNS", "engine.example")], "engine.example", True),
        ([("DNS", "*.example")], "engine.example", True),
        ([("DNS", "*.example")], "a.engine.example", False),
        ([("DNS", "*.example")], "example", False),
        ([("DNS", "*")], "engine", False),
        ([("DNS", "eng*.example")], "engine.example", True),
        ([("DNS", "eng*gine.example")], "engine.example", False),
        ([("DNS", "xn--*.example")], "xn--a.example", False),
        ([("DNS", "*.*.example")], "a.engine.example", False),
        ([("DNS", "engine.example.evil")], "engine.example", False),
        ([("URI", "engine.example")], "engine.example", False),
        ([("IP Address", "127.0.0.1")], "127.0.0.1", True),
        ([("DNS", "127.0.0.1")], "127.0.0.2", False),
        ([("DNS", "127.0.0.1")], "127.0.0.1", False),
        ([("DNS", "*.0.0.1")], "127.0.0.1", False),
        ([("IP Address", "0:0:0:0:0:0:0:1")], "::1", True),
        ([], "engine.example", False),
    ],
)
def test_without_san_list_the_server_name_must_match(
    names: list[tuple[str, str]], asked_for: str, will_do: bool
) -> None:
    assert certificate_matches(shown(*names), asked_for, ()) is will_do


@pytest.mark.parametrize(
    ("names", "wanted", "will_do"),
    [
        ([("DNS", "a.pool.svc")], "*.pool.svc", True),
        ([("DNS", "*.pool.svc")], "*.pool.svc", True),
        ([("DNS", "a.b.pool.svc")], "*.pool.svc", False),
        ([("DNS", "pool.svc")], "*.pool.svc", False),
        ([("URI", "spiffe://x/engine/7")], "spiffe://x/engine/*", True),
        ([("URI", "spiffe://x/engine/7/8")], "spiffe://x/engine/*", False),
        ([("URI", "spiffe://x/engine/7/8")], "spiffe://x/engine/**", True),
        ([("DNS", "spiffe://x/engine/7")], "spiffe://x/engine/*", False),
        ([("URI", "spiffe://y/engine/7")], "spiffe://x/engine/*", False),
        ([("DNS", "asked.example")], "other.example", False),
    ],
)
def test_san_list_is_exclusive(names: list[tuple[str, str]], wanted: str, will_do: bool) -> None:
    assert certificate_matches(shown(*names), "asked.example", (wanted,)) is will_do
    assert certificate_matches(shown(*names), "asked.example", ("other.example", wanted)) is will_do


_WORD = st.sampled_from(["a", "b", "A", "x-1"])
_NAMES = st.lists(_WORD, min_size=1, max_size=3).map(".".join) | st.lists(_WORD, min_size=1, max_size=3).map(
    lambda words: "spiffe://" + "/".join(words)
)
_WANTED = (
    _NAMES
    | st.lists(_WORD, min_size=1, max_size=2).map(lambda words: "*." + ".".join(words))
    | st.sampled_from(["spiffe://a/*", "spiffe://a/**", "spiffe://*/b", "spiffe://a/b*"])
)


@given(name=_NAMES, wanted=_WANTED)
def test_the_prober_and_proxies_take_the_same_names(name: str, wanted: str) -> None:
    kind = "URI" if is_uri(name) else "DNS"
    proxies = is_uri(wanted) == is_uri(name) and re.fullmatch(expression(wanted), name) is not None
    assert certificate_matches(shown((kind, name)), "", (wanted,)) is proxies


def test_contexts_are_rebuilt_when_trust_changes(tmp_path: Path) -> None:
    certificate(tmp_path, "one", "localhost")
    certificate(tmp_path, "two", "localhost")
    files = [
        TrustFiles(
            authorities=tmp_path / "ca.crt", certificate=tmp_path / f"{name}.crt", key=tmp_path / f"{name}.key"
        )
        for name in ("one", "two")
    ]
    now = read_trust(files[0])
    means = ClientTlsCache(lambda: now)
    first = means()
    now = replace(now)
    assert means() is first
    now = read_trust(files[1])
    assert means() is not first
    assert repr(now.key) not in repr(now)
    now = TrustBundle(authorities=b"nothing", ends_unix_s=0.0)
    with pytest.raises(TrustError, match="unusable TLS files"):
        means()


def test_non_ascii_comment_in_a_bundle_is_accepted(tmp_path: Path) -> None:
    certificate(tmp_path, "one", "localhost")
    trust = TrustBundle(authorities="# Türktrust\n".encode() + (tmp_path / "ca.crt").read_bytes(), ends_unix_s=0.0)
    with pytest.raises(TrustError, match="ASCII"):
        engine_client_context(trust)


def test_longest_lived_authority_decides_when_trust_ends(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        certificate(tmp_path / name, "one", "localhost")
    alone = read_trust(TrustFiles(authorities=tmp_path / "a" / "ca.crt"))
    both = tmp_path / "both.crt"
    both.write_bytes((tmp_path / "a" / "ca.crt").read_bytes() + (tmp_path / "b" / "ca.crt").read_bytes())
    assert read_trust(TrustFiles(authorities=both)).ends_unix_s >= alone.ends_unix_s
    proving = read_trust(
        TrustFiles(authorities=both, certificate=tmp_path / "a" / "one.crt", key=tmp_path / "a" / "one.key")
    )
    assert proving.ends_unix_s < alone.ends_unix_s
    assert engine_client_context(proving).verify_mode is ssl.CERT_REQUIRED


def test_other_failures_are_not_reported_as_tls() -> None:
    assert not tls_failure(ConnectionResetError())
    assert not tls_failure(TimeoutError())
    assert not tls_failure(ssl.SSLEOFError())
    wrapped = OSError("cannot connect")
    wrapped.__cause__ = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")
    assert tls_failure(wrapped)
