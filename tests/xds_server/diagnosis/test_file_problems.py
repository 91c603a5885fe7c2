"""File problems: what is reported, since when, and that it ends when fixed."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from xds_server.admin_api.status_types import FileDefect, FileProblem
from xds_server.auth.lab_ca import LAB_CERTIFICATES, make_certificates
from xds_server.auth.server_auth import ServerAuth
from xds_server.diagnosis.file_problems import EXPIRES_SOON_S, FileProblems, expiry_problem
from xds_server.serve_config import ServeConfig

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


def made(folder: Path, clock: Clock, *, lasts: timedelta = timedelta(days=90)) -> tuple[ServerAuth, FileProblems]:
    make_certificates(folder, LAB_CERTIFICATES, lasts=lasts)
    (folder / "access.yaml").write_text(RULES)
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    guard = ServerAuth(
        ServeConfig(
            policies=(folder,),
            tls_cert=folder / "server.crt",
            tls_key=folder / "server.key",
            tls_ca=folder / "ca.crt",
            access=folder / "access.yaml",
        )
    )
    return guard, FileProblems((guard.file_problems,), clock=clock)


def look(guard: ServerAuth) -> None:
    guard.check_files(lambda: None, lambda: None)


def kinds(troubles: tuple[FileProblem, ...]) -> list[tuple[str, FileDefect]]:
    return [(one.what, one.defect) for one in troubles]


def ending(left_s: float, life_s: float) -> list[FileDefect]:
    found = expiry_problem(
        "certificate", "a.crt", begins_unix_s=0.0, ends_unix_s=life_s, now_unix_s=life_s - left_s
    )
    return [one.defect for one in found]


@pytest.mark.parametrize(
    ("left_s", "life_s", "told"),
    [
        (EXPIRES_SOON_S, 90 * DAY_S, []),
        (EXPIRES_SOON_S - 1, 90 * DAY_S, [FileDefect.ENDS]),
        (DAY_S / 2, DAY_S, []),
        (DAY_S / 4 - 1, DAY_S, [FileDefect.ENDS]),
        (0.0, DAY_S, [FileDefect.ENDED]),
        (-DAY_S, 90 * DAY_S, [FileDefect.ENDED]),
    ],
)
def test_certificate_expiry_is_reported_in_time(left_s: float, life_s: float, told: list[FileDefect]) -> None:
    assert ending(left_s, life_s) == told


def test_problem_has_an_age_and_ends_when_fixed(tmp_path: Path) -> None:
    clock = Clock()
    guard, troubles = made(tmp_path, clock)
    assert troubles.current() == ()
    whole, rules = (tmp_path / "server.key").read_text(), (tmp_path / "access.yaml").read_text()
    (tmp_path / "server.key").write_text("half a k")
    look(guard)
    assert kinds(troubles.current()) == [("certificate", FileDefect.UNUSABLE)]
    clock.now_s += 40.0
    (tmp_path / "access.yaml").write_text("kind: Acces\n")
    (tmp_path / "token").write_text("short")
    look(guard)
    found = troubles.current()
    assert kinds(found) == [
        ("certificate", FileDefect.UNUSABLE),
        ("rules", FileDefect.UNUSABLE),
        ("token", FileDefect.UNUSABLE),
    ], "the oldest comes first"
    assert [one.age_s for one in found] == [40.0, 0.0, 0.0]
    assert [Path(one.file).name for one in found] == ["server.crt", "access.yaml", "token"]
    (tmp_path / "server.key").write_text(whole)
    (tmp_path / "access.yaml").write_text(rules)
    (tmp_path / "token").write_text(TOKEN)
    look(guard)
    assert troubles.current() == ()
    (tmp_path / "server.key").write_text("half again")
    look(guard)
    assert [one.age_s for one in troubles.current()] == [0.0], "another problem has its own age"


def test_problem_text_has_no_secret(tmp_path: Path) -> None:
    guard, troubles = made(tmp_path, Clock())
    secret = "-----BEGIN PRIVATE KEY-----hidden"
    (tmp_path / "server.key").write_text(secret)
    (tmp_path / "token").write_text(f"{TOKEN} with a space")
    look(guard)
    assert len(troubles.current()) == 2
    assert "hidden" not in repr(troubles.current())
    assert TOKEN not in repr(troubles.current())


def test_world_readable_token_works_and_is_reported(tmp_path: Path) -> None:
    guard, troubles = made(tmp_path, Clock())
    (tmp_path / "token").chmod(0o644)
    look(guard)
    assert kinds(troubles.current()) == [("token", FileDefect.OPEN)]
    assert guard.rules is not None
    assert list(guard.rules.tokens.values()) == [TOKEN]
    (tmp_path / "token").chmod(0o600)
    look(guard)
    assert troubles.current() == ()


def test_expiring_lab_certificate_is_reported(tmp_path: Path) -> None:
    guard, troubles = made(tmp_path, Clock(), lasts=timedelta(seconds=-1))
    look(guard)
    [one] = troubles.current()
    assert (one.what, one.defect) == ("certificate", FileDefect.ENDED)
    assert one.ends_in_s is not None
    assert one.ends_in_s < 0


def test_expiring_ca_is_reported_until_a_second_one_is_present(tmp_path: Path) -> None:
    old = tmp_path / "old"
    make_certificates(old, (), lasts=timedelta(days=50), now=datetime.now(UTC) - timedelta(days=98))
    guard, troubles = made(tmp_path, Clock())
    new = (tmp_path / "ca.crt").read_text()
    (tmp_path / "ca.crt").write_text((old / "ca.crt").read_text())
    look(guard)
    [one] = troubles.current()
    assert (one.defect, one.file) == (FileDefect.ENDS, str(tmp_path / "ca.crt"))
    (tmp_path / "ca.crt").write_text((old / "ca.crt").read_text() + new)
    look(guard)
    assert troubles.current() == ()
