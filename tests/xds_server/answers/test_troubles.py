"""Trouble with files that trust depends on: what is told, since when, and that it goes when it is mended."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from xds_server.access.guard import Guard
from xds_server.access.lab_authority import EVERYBODY, make
from xds_server.answers.status import Defect, Trouble
from xds_server.answers.troubles import SOON_S, Troubles, ends
from xds_server.config import ServeConfig

DAY_S = 86_400.0
TOKEN = "correct-horse-battery-staple"
RULES = """
apiVersion: switchgear.dev/v1alpha1
kind: Access
metadata: {name: access}
spec:
  admin:
    - {tokenFile: token, role: write}
"""


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def made(folder: Path, clock: Clock, *, lasts: timedelta = timedelta(days=90)) -> tuple[Guard, Troubles]:
    make(folder, EVERYBODY, lasts=lasts)
    (folder / "access.yaml").write_text(RULES)
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    guard = Guard(
        ServeConfig(
            policies=(folder,),
            tls_cert=folder / "server.crt",
            tls_key=folder / "server.key",
            tls_ca=folder / "ca.crt",
            access=folder / "access.yaml",
        )
    )
    return guard, Troubles((guard.troubles,), clock=clock)


def look(guard: Guard) -> None:
    guard.look(lambda: None, lambda: None)


def kinds(troubles: tuple[Trouble, ...]) -> list[tuple[str, Defect]]:
    return [(one.what, one.defect) for one in troubles]


def ending(left_s: float, life_s: float) -> list[Defect]:
    found = ends("certificate", "a.crt", begins_unix_s=0.0, ends_unix_s=life_s, now_unix_s=life_s - left_s)
    return [one.defect for one in found]


@pytest.mark.parametrize(
    ("left_s", "life_s", "told"),
    [
        (SOON_S, 90 * DAY_S, []),
        (SOON_S - 1, 90 * DAY_S, [Defect.ENDS]),
        (DAY_S / 2, DAY_S, []),
        (DAY_S / 4 - 1, DAY_S, [Defect.ENDS]),
        (0.0, DAY_S, [Defect.ENDED]),
        (-DAY_S, 90 * DAY_S, [Defect.ENDED]),
    ],
)
def test_an_end_is_told_while_there_is_time_and_short_lives_are_no_news(
    left_s: float, life_s: float, told: list[Defect]
) -> None:
    assert ending(left_s, life_s) == told


def test_trouble_has_an_age_from_when_it_began_and_goes_when_it_is_mended(tmp_path: Path) -> None:
    clock = Clock()
    guard, troubles = made(tmp_path, clock)
    assert troubles.look() == ()
    whole, rules = (tmp_path / "server.key").read_text(), (tmp_path / "access.yaml").read_text()
    (tmp_path / "server.key").write_text("half a k")
    look(guard)
    assert kinds(troubles.look()) == [("certificate", Defect.UNUSABLE)]
    clock.now_s += 40.0
    (tmp_path / "access.yaml").write_text("kind: Acces\n")
    (tmp_path / "token").write_text("short")
    look(guard)
    found = troubles.look()
    assert kinds(found) == [
        ("certificate", Defect.UNUSABLE),
        ("rules", Defect.UNUSABLE),
        ("token", Defect.UNUSABLE),
    ], "what stands longest is first"
    assert [one.age_s for one in found] == [40.0, 0.0, 0.0]
    assert [Path(one.file).name for one in found] == ["server.crt", "access.yaml", "token"]
    (tmp_path / "server.key").write_text(whole)
    (tmp_path / "access.yaml").write_text(rules)
    (tmp_path / "token").write_text(TOKEN)
    look(guard)
    assert troubles.look() == ()
    (tmp_path / "server.key").write_text("half again")
    look(guard)
    assert [one.age_s for one in troubles.look()] == [0.0], "another trouble has another age"


def test_nothing_secret_is_in_a_trouble(tmp_path: Path) -> None:
    guard, troubles = made(tmp_path, Clock())
    secret = "-----BEGIN PRIVATE KEY-----hidden"
    (tmp_path / "server.key").write_text(secret)
    (tmp_path / "token").write_text(f"{TOKEN} with a space")
    look(guard)
    assert len(troubles.look()) == 2
    assert "hidden" not in repr(troubles.look())
    assert TOKEN not in repr(troubles.look())


def test_a_token_that_others_can_read_works_and_is_told(tmp_path: Path) -> None:
    guard, troubles = made(tmp_path, Clock())
    (tmp_path / "token").chmod(0o644)
    look(guard)
    assert kinds(troubles.look()) == [("token", Defect.OPEN)]
    assert guard.rules is not None
    assert list(guard.rules.tokens.values()) == [TOKEN]
    (tmp_path / "token").chmod(0o600)
    look(guard)
    assert troubles.look() == ()


def test_a_certificate_of_the_lab_that_is_about_to_end(tmp_path: Path) -> None:
    guard, troubles = made(tmp_path, Clock(), lasts=timedelta(seconds=-1))
    look(guard)
    [one] = troubles.look()
    assert (one.what, one.defect) == ("certificate", Defect.ENDED)
    assert one.ends_in_s is not None
    assert one.ends_in_s < 0


def test_an_authority_that_is_about_to_end_is_told_until_another_stands_beside_it(tmp_path: Path) -> None:
    old = tmp_path / "old"
    make(old, (), lasts=timedelta(days=50), now=datetime.now(UTC) - timedelta(days=98))
    guard, troubles = made(tmp_path, Clock())
    new = (tmp_path / "ca.crt").read_text()
    (tmp_path / "ca.crt").write_text((old / "ca.crt").read_text())
    look(guard)
    [one] = troubles.look()
    assert (one.defect, one.file) == (Defect.ENDS, str(tmp_path / "ca.crt"))
    (tmp_path / "ca.crt").write_text((old / "ca.crt").read_text() + new)
    look(guard)
    assert troubles.look() == ()
