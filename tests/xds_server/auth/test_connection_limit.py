"""Connection limits per host and in total, and the identity of a host."""

import pytest
from structlog.testing import capture_logs

from xds_server.auth.connection_limit import ConnectionLimiter, host_of


@pytest.mark.parametrize(
    ("peer", "identities", "host"),
    [
        ("ipv4:10.0.0.1:4711", (), "10.0.0.1"),
        ("ipv4:10.0.0.1:4712", (), "10.0.0.1"),
        ("ipv4:10.0.0.1:4711", ("spiffe://x/a",), "10.0.0.1 spiffe://x/a"),
        ("ipv6:%5B2001:db8::1%5D:4711", (), "2001:db8::/64"),
        ("ipv6:[2001:db8::ffff:1]:1", (), "2001:db8::/64"),
        ("ipv6:%5Bfe80::1%25eth0%5D:4711", (), "fe80::/64"),
        ("ipv6:[::ffff:10.0.0.1]:4711", (), "10.0.0.1"),
        ("unix:/run/x.sock", (), "unix:/run/x.sock"),
        ("ipv4:rubbish", (), ""),
        ("", (), ""),
    ],
)
def test_connection_limit_identifies_a_host(peer: str, identities: tuple[str, ...], host: str) -> None:
    assert host_of(peer, identities) == host


def test_connection_limit_per_host_and_in_total() -> None:
    crowd = ConnectionLimiter("streams", 3, 2)
    crowd.acquire("a")
    assert not crowd.full_for("a")
    crowd.acquire("a")
    with capture_logs() as logs:
        assert crowd.full_for("a") == "over the limit of 2 streams per host"
        assert crowd.full_for("a")
        assert not crowd.full_for("b")
    assert [(one["event"], one["host"]) for one in logs] == [("peers.host_full", "a")], "logged once"
    assert not crowd.full()
    crowd.acquire("b")
    assert crowd.full() == "over the limit of 3 streams"
    crowd.release("a")
    assert not crowd.full()
    assert not crowd.full_for("a")
    crowd.acquire("a")
    with capture_logs() as logs:
        assert crowd.full_for("a")
    assert len(logs) == 1, "and again after there was room"
    for host in ("a", "a", "b"):
        crowd.release(host)
    assert crowd._by_host == {}
    assert crowd._told == set()
