"""Secret folders with hostile or wrong content."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from tests.xds_server.secrets.test_secret_folder import folder, one, two, write
from xds_server.secrets import secret_folder
from xds_server.secrets.secret_folder import REVALIDATE_EVERY_S, SecretFolder

__all__ = ("folder", "one", "two")


@pytest.mark.parametrize("file", ["ca.crt", "tls.crt"])
def test_private_key_in_a_certificate_file_is_rejected(folder: Path, one: Path, file: str) -> None:
    write(folder / "a", one)
    followed = SecretFolder(folder)
    good = followed.current["a"]
    with (folder / "a" / file).open("ab") as certificates:
        certificates.write((one / "proxy.key").read_bytes())
    followed.poll()
    assert not followed.poll()
    assert f"{file} contains a private key" in followed.why_not("a")
    assert followed.current["a"] is good


def test_text_between_certificates_is_not_sent(folder: Path, one: Path) -> None:
    write(folder / "a", one)
    plain = (folder / "a" / "ca.crt").read_bytes()
    (folder / "a" / "ca.crt").write_bytes(
        "# Türktrust, password: hunter2\n".encode() + plain + b"hunter2\n" + plain
    )
    followed = SecretFolder(folder)
    assert followed.current["a"].authorities == plain
    assert followed.current["a"].authorities.isascii()


def test_too_many_ca_certificates_are_rejected(folder: Path, one: Path) -> None:
    write(folder / "a", one)
    (folder / "a" / "ca.crt").write_bytes((one / "ca.crt").read_bytes() * 501)
    assert "ca.crt has 501 certificates; limit 500" in SecretFolder(folder).why_not("a")


def test_symlink_loop_does_not_affect_other_secrets(folder: Path, one: Path) -> None:
    write(folder / "a", one)
    (folder / "loop").symlink_to("loop")
    followed = SecretFolder(folder)
    assert list(followed.current) == ["a"]
    assert "ca.crt is missing" in followed.why_not("loop")


def test_undecodable_folder_names_are_reported_as_text(folder: Path, one: Path) -> None:
    write(folder / "a", one)
    (Path(os.fsdecode(os.fsencode(folder) + b"/\xff<img src=x>\x1b[31m\n" + b"x" * 100))).mkdir()
    followed = SecretFolder(folder)
    (trouble,) = followed.problems()
    assert f"{trouble.file} {trouble.sentence}".isprintable()
    assert f"{trouble.file} {trouble.sentence}".isascii()

    class Collector:
        def collect(self) -> list[Metric]:
            return list(followed.families())

    registry = CollectorRegistry()
    registry.register(Collector())
    assert b"udcff" in generate_latest(registry)


def test_symlink_race_is_not_followed(
    folder: Path, one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / "a", one)
    write(tmp_path / "elsewhere", one)
    resolve: Callable[[str | Path], str] = os.path.realpath

    def too_late(path: str | Path) -> str:
        found = resolve(path)
        if Path(path).name == "tls.key" and not (folder / "a").is_symlink():
            (folder / "a").rename(folder / ".gone")
            (folder / "a").symlink_to(tmp_path / "elsewhere")
        return found

    monkeypatch.setattr(os.path, "realpath", too_late)
    followed = SecretFolder(folder)
    assert not followed.current
    assert (folder / "a" / "tls.key").read_bytes()
    assert "tls.key is missing" in followed.why_not("a")


def test_total_secret_size_is_limited(folder: Path, one: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "b", one)
    followed = SecretFolder(folder)
    size = sum((folder / "b" / file).stat().st_size for file in ("ca.crt", "tls.crt", "tls.key"))
    monkeypatch.setattr(secret_folder, "MAX_BYTES_TOGETHER", size + 1)
    write(folder / "a", one)
    followed.poll()
    followed.poll()
    assert sorted(followed.current) == ["a", "b"]
    assert "all secrets together" in followed.why_not("b")


def test_rejected_secret_is_not_validated_every_poll(
    folder: Path, one: Path, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged, now_s = [], [time.time()]
    judge = secret_folder.validate_secret

    def counted(*args: object, **kwargs: object) -> object:
        judged.append(args)
        return judge(*args, **kwargs)  # type: ignore[arg-type]  # passed on as it came

    monkeypatch.setattr(secret_folder, "validate_secret", counted)
    write(folder / "a", one)
    (folder / "a" / "tls.key").write_bytes((two / "proxy.key").read_bytes())
    followed = SecretFolder(folder, wall=lambda: now_s[0])
    for _ in range(5):
        followed.poll()
    assert len(judged) == 1
    assert "does not match" in followed.why_not("a")
    now_s[0] += REVALIDATE_EVERY_S
    followed.poll()
    assert len(judged) == 2
    # Other content is validated once it is stable.
    (folder / "a" / "tls.key").write_bytes((one / "proxy.key").read_bytes())
    followed.poll()
    assert followed.poll()
    assert list(followed.current) == ["a"]
