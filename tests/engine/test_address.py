"""Where a port listens, as people write it."""

import pytest

from engine.address import ListenAddress


@pytest.mark.parametrize(
    ("text", "address", "loopback"),
    [
        ("127.0.0.1:18000", ListenAddress("127.0.0.1", 18000), True),
        ("[::1]:1", ListenAddress("::1", 1), True),
        ("localhost:0", ListenAddress("localhost", 0), True),
        (":18000", ListenAddress("0.0.0.0", 18000), False),
        ("10.1.2.3:65535", ListenAddress("10.1.2.3", 65535), False),
        ("name.example:1", ListenAddress("name.example", 1), False),
    ],
)
def test_addresses(text: str, address: ListenAddress, loopback: bool) -> None:
    assert ListenAddress.parse(text) == address
    assert address.is_loopback is loopback
    assert ListenAddress.parse(str(address)) == address


def test_an_ipv6_host_stands_in_brackets() -> None:
    assert str(ListenAddress("::1", 80)) == "[::1]:80"


@pytest.mark.parametrize("text", ["", "18000", "host:", "host:http", "host:65536", "host:-1", "host:99999"])
def test_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        ListenAddress.parse(text)
