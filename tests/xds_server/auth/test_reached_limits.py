"""Reached limits: reported for a minute, with the peers that keep reaching them, in bounded memory."""

import pytest

from tests.xds_server.admin_api import rows
from xds_server.auth.reached_limits import MAX_PEERS, REPORTED_S, PeerLimit, ReachedLimits
from xds_server.diagnosis.conditions import ServerState, conditions
from xds_server.xds import StreamErrorKind


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_limit_is_reported_for_a_minute_after_it_was_last_reached(clock: Clock) -> None:
    limits = ReachedLimits(clock)
    limits.add(PeerLimit.CPU, "10.0.0.9", "gw-1")
    clock.now_s += REPORTED_S / 2
    limits.add(PeerLimit.CPU, "10.0.0.9", "gw-1")
    clock.now_s += REPORTED_S
    (one,) = limits.current()
    assert (one.code, one.peers, one.count, one.age_s) == ("SG281", ("gw-1 at 10.0.0.9",), 1, 1.5 * REPORTED_S)
    clock.now_s += 0.1
    assert limits.current() == []
    limits.add(PeerLimit.CPU, "10.0.0.9", "gw-1")
    assert limits.current()[0].age_s == 0.0, "a new episode"


def test_peers_that_stay_at_a_limit_keep_their_place(clock: Clock) -> None:
    """The sentence stays the same while they do: views that are drawn each second do not change."""
    limits = ReachedLimits(clock)
    for number in range(8):
        limits.add(PeerLimit.STREAMS, f"10.0.0.{number}")
    before = limits.current()[0]
    clock.now_s += 1
    for number in reversed(range(8)):
        limits.add(PeerLimit.STREAMS, f"10.0.0.{number}")
    after = limits.current()[0]
    assert before.peers == after.peers == tuple(f"10.0.0.{number}" for number in range(5))
    assert after.count == 8
    state = ServerState(now_unix_s=0.0, policies=rows.policies_status(), limits=[after])
    (shown,) = [one for one in conditions(state) if one.code == "SG280"]
    assert shown.sentence.endswith("10.0.0.4 and 3 more")


def test_memory_of_peers_is_bounded(clock: Clock) -> None:
    limits = ReachedLimits(clock)
    for number in range(MAX_PEERS + 100):
        limits.add(PeerLimit.MESSAGES, "10.0.0.9", f"{number:01000}")
    (one,) = limits.current()
    assert one.count == MAX_PEERS
    assert max(map(len, one.peers)) < 110


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (StreamErrorKind.CONNECTION_LIMIT, "SG280"),
        (StreamErrorKind.HOST_LIMIT, "SG280"),
        (StreamErrorKind.SILENT, "SG284"),
        (StreamErrorKind.SIZE, "SG284"),
        (StreamErrorKind.NAMES, "SG284"),
        (StreamErrorKind.GARBAGE, ""),
        (StreamErrorKind.DENIED, ""),
        (StreamErrorKind.PROTOCOL, ""),
    ],
)
def test_only_stream_errors_at_a_limit_are_reported(clock: Clock, kind: StreamErrorKind, code: str) -> None:
    limits = ReachedLimits(clock)
    limits.add_stream_error(kind, "10.0.0.9", "gw-1")
    assert [one.code for one in limits.current()] == ([code] if code else [])
