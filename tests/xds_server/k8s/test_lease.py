"""At most one replica writes, whatever clocks, pauses and networks do."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.eventually import eventually
from tests.xds_server.k8s.fake_leases import FakeLeases
from xds_server.k8s.kube_api import ApiError
from xds_server.k8s.lease import (
    LeaderElectionRecord,
    LeaderElector,
    LeaseTime,
    LeaseTimings,
    ObservedRecord,
    lease_record,
    lease_spec,
    may_acquire,
    micro_time,
    observed_record,
)

PATIENT_S = 20.0


@dataclass
class Clock:
    """Two clocks set by the test."""

    awake_s: float = 1000.0
    unix_s: float = 1_700_000_000.0

    def pass_(self, seconds: float) -> None:
        self.awake_s += seconds
        self.unix_s += seconds

    def __call__(self) -> LeaseTime:
        return LeaseTime(awake_s=self.awake_s, unix_s=self.unix_s)


def lease(api: FakeLeases, clock: Clock, name: str) -> LeaderElector:
    return LeaderElector(api, namespace="ns", name="writer", identity=name, clock=clock, rng=random.Random(1))


def test_leader_election_has_one_lease_holder() -> None:
    async def play() -> None:
        api, clock = FakeLeases(), Clock()
        one, two = lease(api, clock, "same"), lease(api, clock, "same")
        await asyncio.gather(one._attempt(), two._attempt())
        assert [one.holds(), two.holds()].count(True) == 1
        for _ in range(5):
            clock.pass_(1.0)
            await asyncio.gather(one._attempt(), two._attempt())
        assert [one.holds(), two.holds()].count(True) == 1

    asyncio.run(play())


def test_paused_leader_detects_lease_loss_before_writing() -> None:
    async def play() -> None:
        api, clock = FakeLeases(), Clock()
        one, two = lease(api, clock, "one"), lease(api, clock, "two")
        await one._attempt()
        await two._attempt()
        assert one.holds()
        clock.pass_(60.0)  # nothing ran meanwhile, including timers
        assert not one.holds()
        await two._attempt()
        assert two.holds()
        await one._attempt()
        assert not one.holds()
        assert api.objects["writer"]["spec"]["leaseTransitions"] == 1

    asyncio.run(play())


def test_lease_is_safe_under_wall_clock_jumps() -> None:
    async def play() -> None:
        api, ours, theirs = FakeLeases(), Clock(), Clock()
        one, two = lease(api, ours, "one"), lease(api, theirs, "two")
        await one._attempt()
        await two._attempt()
        ours.unix_s += 3600
        theirs.unix_s += 3600
        assert not one.holds()
        await two._attempt()
        assert not two.holds()
        await one._attempt()
        assert one.holds()
        ours.unix_s -= 7200  # and back: the other clock continues
        ours.awake_s += 7.0
        assert not one.holds()

    asyncio.run(play())


def test_leader_steps_down_before_the_lease_expires() -> None:
    async def play() -> None:
        api, clock = FakeLeases(), Clock()
        one = lease(api, clock, "one")
        await one._attempt()
        api.down = True
        clock.pass_(5.9)
        await one._attempt()
        assert one.holds()
        clock.pass_(0.2)
        assert not one.holds()
        assert clock.awake_s - 1000 < 10.0
        api.down = False
        await one._attempt()
        assert one.holds()

    asyncio.run(play())


def test_released_lease_is_acquired_at_once() -> None:
    async def play() -> None:
        api, clock = FakeLeases(), Clock()
        one, two = lease(api, clock, "one"), lease(api, clock, "two")
        await one._attempt()
        await two._attempt()
        await one.release()
        assert not one.holds()
        assert api.objects["writer"]["spec"]["holderIdentity"] == ""
        await two._attempt()
        assert two.holds()
        # A candidate has nothing to release.
        await one.release()
        assert api.objects["writer"]["spec"]["holderIdentity"] == two.identity

    asyncio.run(play())


def test_lease_release_waits_for_a_renewal_in_flight() -> None:
    async def play() -> None:
        api, clock = FakeLeases(), Clock()
        one = lease(api, clock, "one")
        await one._attempt()
        api._put("writer", api.objects["writer"])  # arrived, but its answer was never read
        await one.release()
        assert api.objects["writer"]["spec"]["holderIdentity"] == ""

    asyncio.run(play())


def test_leader_that_lost_the_lease_holds_nothing() -> None:
    async def play() -> None:
        api, clock = FakeLeases(), Clock()
        one = lease(api, clock, "one")
        await one._attempt()
        taken = dict(api.objects["writer"])
        taken["spec"] = {**taken["spec"], "holderIdentity": "by hand"}
        api._put("writer", taken)
        await one._attempt()
        assert not one.holds()

    asyncio.run(play())


def test_stopping_the_leader_hands_over_the_lease() -> None:
    async def play() -> None:
        api = FakeLeases()
        changes: list[str] = []

        def made(name: str) -> LeaderElector:
            return LeaderElector(
                api,
                namespace="ns",
                name="writer",
                identity=name,
                timings=LeaseTimings(duration_s=60.0, deadline_s=5.0, poll_s=0.02),
                on_change=lambda: changes.append(name),
            )

        one = made("one")
        first = asyncio.create_task(one.run())
        await eventually(one.holds, "the first to hold it", PATIENT_S)
        two = made("two")
        second = asyncio.create_task(two.run())
        await eventually(lambda: two.holder == one.identity, "the second to see who holds it", PATIENT_S)
        first.cancel()
        await one.release()
        # Acquired before its sixty seconds: it was released.
        await eventually(two.holds, "the second to hold it", PATIENT_S)
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert changes == ["one", "one", "two"]

    asyncio.run(play())


@pytest.mark.parametrize(
    ("poll_s", "deadline_s", "duration_s"), [(6.0, 6.0, 10.0), (1.0, 10.0, 10.0), (7.0, 6.0, 10.0)]
)
def test_lease_timings_order_poll_deadline_duration(poll_s: float, deadline_s: float, duration_s: float) -> None:
    with pytest.raises(ValueError, match="poll_s < deadline_s < duration_s"):
        LeaseTimings(poll_s=poll_s, deadline_s=deadline_s, duration_s=duration_s)


def test_malformed_lease_has_safe_defaults() -> None:
    record = lease_record({"metadata": None, "spec": {"holderIdentity": 7, "leaseDurationSeconds": "x"}})
    assert (record.holder, record.duration_s, record.transitions) == ("7", 1.0, 0)
    assert lease_record({}).holder == ""


def test_lease_times_are_rfc3339_micro() -> None:
    assert micro_time(0.25) == "1970-01-01T00:00:00.250000Z"
    mine = LeaderElectionRecord(
        holder="me", duration_s=10, acquired="then", renewed="", transitions=3, version="1"
    )
    now = LeaseTime(awake_s=0, unix_s=0.5)
    assert lease_spec(mine, "me", 10, now)["acquireTime"] == "then"
    assert lease_spec(mine, "other", 10, now)["leaseTransitions"] == 4
    assert lease_spec(mine, "other", 10, now)["acquireTime"] == "1970-01-01T00:00:00.500000Z"


def test_lease_expiry_counts_from_the_last_observed_renewal() -> None:
    record = LeaderElectionRecord(
        holder="other", duration_s=10, acquired="", renewed="a", transitions=0, version="1"
    )
    first = observed_record(None, record, LeaseTime(awake_s=0, unix_s=0))
    assert observed_record(first, record, LeaseTime(awake_s=5, unix_s=5)) is first
    assert not may_acquire(first, "me", LeaseTime(awake_s=9.9, unix_s=0))
    assert may_acquire(first, "me", LeaseTime(awake_s=10, unix_s=0))
    assert may_acquire(ObservedRecord(record=record, at=first.at), "other", LeaseTime(awake_s=0, unix_s=0))


@dataclass
class Play:
    """Replicas with separate clocks that run at one speed, except while stopped."""

    api: FakeLeases = field(default_factory=FakeLeases)
    clocks: list[Clock] = field(default_factory=lambda: [Clock(), Clock(awake_s=50.0), Clock(unix_s=5.0)])


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["look", "look", "look", "down", "up", "jump", "release"])),
        max_size=60,
    ),
    st.lists(st.floats(0, 12), min_size=60, max_size=60),
)
def test_lease_never_has_two_holders(steps: Sequence[tuple[int, str]], pauses: Sequence[float]) -> None:
    async def play() -> None:
        stage = Play()
        replicas = [lease(stage.api, clock, "same") for clock in stage.clocks]
        for (who, what), pause_s in zip(steps, pauses, strict=False):
            for clock in stage.clocks:
                clock.pass_(pause_s)
            assert sum(one.holds() for one in replicas) <= 1
            match what:
                case "look":
                    await replicas[who]._attempt()
                case "release":
                    await replicas[who].release()
                case "jump":
                    stage.clocks[who].unix_s += pause_s * 100 - 600
                case _:
                    stage.api.down = what == "down"
            assert sum(one.holds() for one in replicas) <= 1

    asyncio.run(play())


def test_lease_api_error_is_logged_once_and_retried() -> None:
    async def play() -> None:
        class Forbidding(FakeLeases):
            async def get(self, *_: object) -> dict[str, object]:
                raise ApiError(403, "Forbidden", "leases")

        one = lease(Forbidding(), Clock(), "one")
        await one._attempt()
        assert "403" in one._failure
        assert not one.holds()

    asyncio.run(play())
