"""How a command connects: never in plain text where that would ignore or give away what was said."""

import http.client
from pathlib import Path

import click
import pytest

from xds_server.cli.asking import _META, opened


def connection(admin: str, said: dict[str, object]) -> tuple[http.client.HTTPConnection, dict[str, str]]:
    with click.Context(click.Command("x")) as context:
        context.meta[_META] = said
        return opened(admin)


@pytest.mark.parametrize("option", ["cacert", "cert", "key", "server_name"])
@pytest.mark.parametrize("admin", ["prod:18001", "http://127.0.0.1:18001"])
def test_what_is_for_https_is_refused_over_http(option: str, admin: str) -> None:
    with pytest.raises(click.UsageError, match=f"--{option.replace('_', '-')} is for https.*write https://"):
        connection(admin, {option: "x"})


def test_a_token_goes_in_plain_text_to_this_machine_only(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t" * 32)
    for admin in ("prod:18001", "http://10.2.0.1:18001"):
        with pytest.raises(click.UsageError, match="plain text"):
            connection(admin, {"token_file": token})
    for admin in ("127.0.0.1:18001", "http://localhost:18001", "http://[::1]:18001", "https://prod:18001"):
        assert connection(admin, {"token_file": token})[1] == {"Authorization": f"Bearer {'t' * 32}"}
