"""Certificates for tests: of an authority in a folder, for names, for a time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from engine.tls.files import read_trust
from engine.tls.paths import TrustFiles
from engine.tls.trust import Connecting, Means
from xds_server.access.lab_authority import Wanted, make

DAY = timedelta(days=1)


def certificate(
    folder: Path,
    name: str,
    *names: str,
    path: str = "engine",
    lasts: timedelta = DAY,
    ago: timedelta = timedelta(),
) -> None:
    """``NAME.crt`` and ``NAME.key`` of the authority in the folder, which is made where there is none."""
    if not (folder / "ca.crt").exists():
        make(folder, (), lasts=100 * DAY)
    make(folder, (Wanted(name=name, path=path, names=names),), lasts=lasts, now=datetime.now(UTC) - ago)


def means(folder: Path, *alt_names: str, proof: str = "") -> Callable[[], Means]:
    """What to connect by for who trusts the authority in the folder, and proves itself by that certificate."""
    files = TrustFiles(
        authorities=folder / "ca.crt",
        certificate=folder / f"{proof}.crt" if proof else None,
        key=folder / f"{proof}.key" if proof else None,
    )
    return Connecting(lambda: read_trust(files), alt_names)


@contextmanager
def swapped(folder: Path, name: str, other: str) -> Iterator[None]:
    """While this lasts, the files of one certificate hold another."""
    kept = {end: (folder / f"{name}.{end}").read_bytes() for end in ("key", "crt")}
    for end in kept:
        (folder / f"{name}.{end}").write_bytes((folder / f"{other}.{end}").read_bytes())
    yield
    for end, content in kept.items():
        (folder / f"{name}.{end}").write_bytes(content)
