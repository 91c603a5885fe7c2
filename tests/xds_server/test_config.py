"""Settings that cannot work are refused with a sentence that says why."""

from pathlib import Path

import pytest

from xds_server.config import Address, ConfigError, ServeConfig


@pytest.mark.parametrize(
    ("text", "address", "loopback"),
    [
        ("127.0.0.1:18000", Address("127.0.0.1", 18000), True),
        ("[::1]:1", Address("::1", 1), True),
        ("localhost:0", Address("localhost", 0), True),
        (":18000", Address("0.0.0.0", 18000), False),
        ("10.1.2.3:65535", Address("10.1.2.3", 65535), False),
        ("name.example:1", Address("name.example", 1), False),
    ],
)
def test_addresses(text: str, address: Address, loopback: bool) -> None:
    assert Address.parse(text) == address
    assert address.loopback is loopback
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize("text", ["", "18000", "host:", "host:http", "host:65536", "host:-1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        Address.parse(text)


def test_settings_that_cannot_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--policies"):
        ServeConfig(policies=())
    with pytest.raises(ConfigError, match="--poll"):
        ServeConfig(policies=(tmp_path,), poll_s=0)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="not a folder"):
        ServeConfig(policies=(tmp_path,), state_dir=tmp_path / "file")
