"""CPU time of peers: by node and by host, with a floor for nodes that use little."""

import asyncio
import time
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from xds_server.auth.log_budget import (
    AGAIN_S,
    EVENTS_OF_HOST,
    EVENTS_OF_NODE,
    LINES_OF_HOST,
    EventLines,
    LogBudget,
)
from xds_server.auth.loop_time import MAX_FACTOR, LoopTime, scheduled_s
from xds_server.auth.peer_budget import (
    ALL_CPU,
    FLOOR_FORGOTTEN_S,
    FORGET_EACH,
    MAX_REMEMBERED,
    MAX_WAIT_S,
    MOST_CPU,
    NEW_FLOOR_S,
    OPENING_CPU,
    PEAK_CPU,
    PEAK_HOST_CPU,
    CpuBudget,
    CpuLimits,
    HostTime,
)
from xds_server.auth.reached_limits import ReachedLimits
from xds_server.auth.stream_limits import (
    LARGE_FIRST_BYTES,
    MAX_FIRST_BYTES,
    MAX_WAITING_BYTES_OF_HOST,
    MESSAGE_S,
    STREAM_S,
    PeerPacer,
)
from xds_server.model.token_bucket import RateLimit, TokenBucket, available_tokens

LIMITS = CpuLimits(node=RateLimit(burst=0.5, per_s=0.1), host=RateLimit(burst=1.0, per_s=0.2))


def test_node_waits_for_what_it_used_beyond_its_burst() -> None:
    budget = CpuBudget(LIMITS)
    budget.spend("h", "a", 0.4, 0.0)
    assert budget.wait_s("h", "a", 0.0) == 0.0
    budget.spend("h", "a", 0.2, 0.0)
    assert 0.9 < budget.wait_s("h", "a", 0.0) < 1.1
    assert budget.wait_s("h", "b", 0.0) == budget.wait_s("other", "a", 0.0) == 0.0
    assert budget.wait_s("h", "a", 1.1) == 0.0


def test_host_waits_for_all_of_its_nodes_except_those_that_use_little() -> None:
    budget = CpuBudget(LIMITS)
    for number in range(10):
        budget.spend("h", f"greedy-{number}", 0.3, 0.0)
    assert budget.wait_s("h", "greedy-0", 0.0) == MAX_WAIT_S
    assert budget.wait_s("h", "modest", 0.0) == 0.0
    budget.spend("h", "modest", NEW_FLOOR_S / 2, 0.0)
    assert budget.wait_s("h", "modest", 0.0) == 0.0
    assert budget.wait_s("elsewhere", "greedy-0", 0.0) == 0.0


def test_node_pauses_for_others_before_its_burst_is_used_up() -> None:
    budget = CpuBudget(LIMITS)
    budget.spend("h", "a", PEAK_CPU.burst, 0.0)
    assert budget.pause_s("h", "a", 0.0) == 0.0
    used_s, now_s = 0.0, 0.0
    while now_s < 1.0:
        pause_s = budget.pause_s("h", "a", now_s)
        assert budget.wait_s("h", "a", now_s) == 0.0
        if pause_s > 0.0:
            now_s += pause_s + 1e-9
            continue
        budget.spend("h", "a", 0.005, now_s)
        used_s, now_s = used_s + 0.005, now_s + 0.005
    assert used_s == pytest.approx(PEAK_CPU.per_s, abs=0.02)
    assert budget.pause_s("h", "b", now_s) == 0.0


def test_nodes_of_a_host_that_use_much_pause_together() -> None:
    hosts = HostTime()
    one, other = CpuBudget(LIMITS, hosts), CpuBudget(LIMITS, hosts)
    for number in range(10):
        one.spend("h", f"greedy-{number}", 0.02, 0.0)
    assert one.pause_s("h", "greedy-0", 0.0) == pytest.approx(0.15 / PEAK_HOST_CPU.per_s)
    other.spend("h", "a", 2 * NEW_FLOOR_S, 0.0)
    assert other.pause_s("h", "a", 0.0) > 0.15 / PEAK_HOST_CPU.per_s
    assert other.pause_s("h", "modest", 0.0) == other.pause_s("other", "a", 0.0) == 0.0


async def test_pause_does_not_count_as_a_reached_limit() -> None:
    waits: list[int] = []
    reached = ReachedLimits()
    pacer = PeerPacer(LIMITS, on_wait=lambda: waits.append(1), reached=reached)
    now_s = time.monotonic()
    pacer.spend("h", "a", 0.1, now_s)
    assert pacer.must_wait("h", "a")
    await pacer.wait("h", "a")
    assert time.monotonic() - now_s >= 0.2
    assert not waits
    assert not reached.current()


def test_made_up_nodes_share_the_time_of_their_host() -> None:
    budget = CpuBudget(LIMITS)
    used_s = 0.0
    for number in range(10_000):
        while budget.wait_s("h", f"made-up-{number}", 0.0) == 0.0:
            budget.spend("h", f"made-up-{number}", 0.001, 0.0)
            used_s += 0.001
    assert used_s < 5.0


def test_host_has_one_limit_for_messages_of_all_kinds() -> None:
    hosts = HostTime(limit=RateLimit(burst=1.0, per_s=0.5))
    one, other = CpuBudget(LIMITS, hosts), CpuBudget(LIMITS, hosts)
    for budget in (one, other):
        budget.spend("h", "greedy", 0.4, 0.0)
        assert budget.wait_s("h", "greedy", 0.0) == 0.0
    one.spend("h", "another", 0.4, 0.0)
    assert other.wait_s("h", "greedy", 0.0) == pytest.approx(0.4)
    assert other.wait_s("h", "modest", 0.0) == 0.0


def test_host_that_used_up_its_time_opens_streams_slowly() -> None:
    budget = CpuBudget(LIMITS)
    budget.spend("h", "greedy", 100.0, 0.0)
    assert budget.opening_wait_s("h", 0.0) == 0.0
    budget.spend_opening("h", OPENING_CPU.burst + 0.1 * OPENING_CPU.per_s, 0.0)
    assert budget.opening_wait_s("h", 0.0) == pytest.approx(0.1)
    assert budget.opening_wait_s("other", 0.0) == 0.0


def test_loop_time_counts_waits_for_a_core_while_time_is_short() -> None:
    now_s, cpu_s, waited_s = 0.0, 0.0, 0.0
    loop = LoopTime(read_s=lambda: (cpu_s, waited_s), clock=lambda: now_s)
    assert loop.factor() == 1.0
    now_s, cpu_s, waited_s = 1.0, 0.4, 0.6
    assert loop.factor() == pytest.approx(2.5)
    now_s, cpu_s, waited_s = 2.0, 0.41, 0.8  # time left
    assert loop.factor() == 1.0
    now_s, cpu_s, waited_s = 3.0, 0.42, 1.79
    assert loop.factor() == MAX_FACTOR
    assert min(scheduled_s()) >= 0.0


async def test_openings_take_turns_by_connection() -> None:
    pacer = PeerPacer(LIMITS)
    pacer._budget.spend_opening("h", 1.0 + OPENING_CPU.burst, time.monotonic())
    order: list[str] = []

    async def open_stream(connection: str) -> None:
        await pacer.open("h", connection)
        order.append(connection)

    pacer._budget._openings["h"].tokens = -STREAM_S
    opening = [asyncio.create_task(open_stream("flood")) for _ in range(20)]
    opening.append(asyncio.create_task(open_stream("honest")))
    await asyncio.wait_for(opening[-1], 20)
    assert order.count("flood") < 5
    opening[-2].cancel()
    await asyncio.wait_for(asyncio.wait(opening), 20)
    assert order.count("flood") == 19
    assert not pacer._openings


async def test_waiting_first_messages_of_a_host_are_limited() -> None:
    reached = ReachedLimits()
    pacer = PeerPacer(LIMITS, reached=reached)
    pacer._budget.spend_opening("h", 100.0, time.monotonic())
    most = MAX_WAITING_BYTES_OF_HOST // MAX_FIRST_BYTES
    waiting = [asyncio.create_task(pacer.admit_first("h", str(number), MAX_FIRST_BYTES)) for number in range(most)]
    await asyncio.sleep(0)
    assert not await pacer.admit_first("h", "further", MAX_FIRST_BYTES)
    assert "SG284" in [one.code for one in reached.current()]
    assert await pacer.admit_first("h", "further", LARGE_FIRST_BYTES)
    assert await pacer.admit_first("other", "further", MAX_FIRST_BYTES)
    for one in waiting:
        one.cancel()
    await asyncio.wait(waiting)
    assert not pacer._openings or not pacer._openings["h"].waiting_bytes


def test_remembered_peers_are_limited() -> None:
    budget = CpuBudget(LIMITS)
    for number in range(MAX_REMEMBERED + 100):
        budget.spend(f"h{number}", "n", 1.0, 0.0)
    assert len(budget._nodes) == len(budget._hosts) == len(budget._all._peaks) == MAX_REMEMBERED


def test_made_up_nodes_are_forgotten_once_that_changes_nothing() -> None:
    hosts = HostTime()
    budget = CpuBudget(LIMITS, hosts)
    for number in range(2_000):
        budget.spend(f"h{number}", f"made-up-{number}", 0.01, 0.0)
        budget.spend_opening(f"h{number}", 0.01, 0.0)
    budget.spend("h", "greedy", 2.0, 0.0)
    for _ in range(20 * FORGET_EACH):
        budget.spend("other", "honest", 1e-6, 5.0)
    assert len(budget._hosts) == 2, "honest, and the one in debt"
    assert len(hosts._used) == 1
    assert not budget._openings
    assert len(budget._nodes) == 2_002, "what little they may use is remembered"
    for _ in range(20 * FORGET_EACH):
        budget.spend("other", "honest", 1e-6, 5.0 + FLOOR_FORGOTTEN_S)
    assert [*budget._nodes] == [("other", "honest")]


_EVENTS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from("xyz"),
        st.sampled_from([1e-4, 0.004, 0.02, 0.3]),
        st.sampled_from([-1.0, 0.0, 0.001, 0.05, 1.0, 700.0]),
    ),
    max_size=60,
)


@given(events=_EVENTS)
def test_budget_is_what_separate_buckets_would_say(events: list[tuple[str, str, float, float]]) -> None:
    budget, buckets, now_s = CpuBudget(LIMITS), _Buckets(LIMITS), 1_000.0
    for host, node, cpu_s, passed_s in events:
        now_s += passed_s
        budget.spend(host, node, cpu_s, now_s, factor=1.5)
        buckets.spend(host, node, cpu_s, now_s, factor=1.5)
        for other, name in product("abc", "xyz"):
            pause_s, wait_s = budget.pause_s(other, name, now_s), budget.wait_s(other, name, now_s)
            assert (pause_s, wait_s) == pytest.approx(buckets.delays_s(other, name, now_s), abs=1e-9)
            assert budget.must_wait(other, name, now_s) == (pause_s > 0 or wait_s > 0)


class _Buckets:
    """The rules of the budget by one value per bucket, which no message shares."""

    def __init__(self, limits: CpuLimits) -> None:
        self._limits = limits
        self._used: dict[tuple[object, ...], TokenBucket] = {}

    def spend(self, host: str, node: str, cpu_s: float, now_s: float, *, factor: float) -> None:
        limits = self._limits
        self._used.setdefault(("floor", host, node), TokenBucket(tokens=NEW_FLOOR_S, at_s=now_s))
        self._take(("floor", host, node), limits.floor, cpu_s, now_s)
        self._take(("node", host, node), limits.node, factor * cpu_s, now_s)
        self._take(("peak", host, node), limits.peak, factor * cpu_s, now_s)
        if not self._is_frugal(host, node, now_s):
            self._take(("peak", host), PEAK_HOST_CPU, factor * cpu_s, now_s)
        self._take(("service", host), limits.host, factor * cpu_s, now_s)
        self._take(("all", host), ALL_CPU, factor * cpu_s, now_s)
        self._take(("most", host), MOST_CPU, cpu_s, now_s)

    def delays_s(self, host: str, node: str, now_s: float) -> tuple[float, float]:
        limits, frugal = self._limits, self._is_frugal(host, node, now_s)
        pause_s = self._debt_s(("peak", host, node), limits.peak, now_s)
        wait_s = self._debt_s(("node", host, node), limits.node, now_s)
        if frugal:
            wait_s = max(wait_s, self._debt_s(("most", host), MOST_CPU, now_s))
        else:
            pause_s = max(pause_s, self._debt_s(("peak", host), PEAK_HOST_CPU, now_s))
            wait_s = max(wait_s, self._debt_s(("all", host), ALL_CPU, now_s))
            wait_s = max(wait_s, self._debt_s(("service", host), limits.host, now_s))
        return min(pause_s, MAX_WAIT_S), min(wait_s, MAX_WAIT_S)

    def _take(self, key: tuple[object, ...], rate: RateLimit, cpu_s: float, now_s: float) -> None:
        tokens = available_tokens(self._used.get(key), rate, now_s) - cpu_s
        self._used[key] = TokenBucket(tokens=tokens, at_s=now_s)

    def _debt_s(self, key: tuple[object, ...], rate: RateLimit, now_s: float) -> float:
        return max(0.0, -available_tokens(self._used.get(key), rate, now_s) / rate.per_s)

    def _is_frugal(self, host: str, node: str, now_s: float) -> bool:
        return available_tokens(self._used.get(("floor", host, node)), self._limits.floor, now_s) > 0


def test_peers_without_log_lines_are_forgotten() -> None:
    now_s = 0.0
    lines = EventLines(clock=lambda: now_s)
    for number in range(900):
        lines.take("xds.connected", f"h{number}", "n")
        lines._notices.take(f"h{number}", "")
    assert len(lines._nodes) == len(lines._hosts) == len(lines._notices._hosts) == 900
    now_s = 10_000.0
    for _ in range(10):
        lines.take("xds.connected", "h", "n")
        lines._notices.take(f"h{_}", "")
    assert len(lines._nodes) == len(lines._hosts) == 1
    assert len(lines._notices._hosts) == len(lines._notices._written_at_s) == 10


async def test_pacer_holds_back_a_greedy_node_and_no_other() -> None:
    waits: list[int] = []
    pacer = PeerPacer(
        CpuLimits(node=RateLimit(burst=0.1, per_s=1.0), host=RateLimit(burst=9.0, per_s=1.0)),
        on_wait=lambda: waits.append(1),
    )
    now_s = time.monotonic()
    pacer.spend("h", "greedy", 0.4, now_s)
    await asyncio.wait_for(pacer.wait("h", "modest"), 0.1)
    assert not waits
    await pacer.wait("h", "greedy")
    assert time.monotonic() - now_s >= 0.29
    assert waits == [1]


async def test_pacer_charges_messages_and_streams_beyond_their_own_time() -> None:
    pacer = PeerPacer(CpuLimits(node=RateLimit(burst=1.0, per_s=0.1), host=RateLimit(burst=1.0, per_s=0.1)))
    now_s = time.monotonic()
    pacer.spend("h", "a", 0.004, now_s)
    assert pacer._budget._nodes["h", "a"].node == pytest.approx(1.0 - 0.004 - MESSAGE_S)
    for _ in range(10):
        await pacer.open("h", "c")
    assert pacer._budget._hosts["h"].tokens == pytest.approx(1.0 - 0.004 - MESSAGE_S - 10 * STREAM_S, abs=0.005)


async def test_pacer_logs_a_node_once_however_often_it_waits() -> None:
    pacer = PeerPacer(CpuLimits(node=RateLimit(burst=0.0, per_s=1.0), host=RateLimit(burst=9.0, per_s=1.0)))
    with capture_logs() as logs:
        for _ in range(20):
            pacer.spend("h", "greedy", 0.001, time.monotonic())
            await pacer.wait("h", "greedy")
    assert [(one["event"], one["node"], one["host"]) for one in logs] == [("peers.paced", "greedy", "h")]


def test_log_lines_are_limited_by_kind_and_host() -> None:
    now_s = 0.0
    lines = LogBudget(clock=lambda: now_s)
    assert [lines.take("h", "size") for _ in range(3)] == [True, False, False]
    most = int(LINES_OF_HOST.burst)
    assert sum(lines.take("h", f"made up {number}") for number in range(1_000)) == most - 1
    assert lines.take("other", "size")
    now_s = AGAIN_S
    assert lines.take("h", "size")


def test_event_lines_are_limited_by_node_and_host() -> None:
    now_s, suppressed = 0.0, []
    reached = ReachedLimits(clock=lambda: now_s)
    lines = EventLines(lambda: suppressed.append(1), reached, clock=lambda: now_s)
    with capture_logs() as logs:
        written = [lines.take("xds.connected", "h", "gw-1") for _ in range(1_000)]
    assert written.index(False) == sum(written) == EVENTS_OF_NODE.burst
    assert len(suppressed) == 1_000 - sum(written)
    assert [(one["event"], one["host"], one["lines"]) for one in logs] == [("peers.lines_suppressed", "h", 1)]
    assert [(one.code, one.peers) for one in reached.current()] == [("SG286", ("gw-1 at h",))]
    assert lines.take("xds.nack", "h", "gw-1")
    assert lines.take("xds.connected", "h", "gw-2")
    assert (
        sum(lines.take("xds.connected", "h", f"made-up-{number}") for number in range(5_000))
        < EVENTS_OF_HOST.burst
    )
    assert lines.take("xds.connected", "other", "gw-1")
    now_s = AGAIN_S
    with capture_logs() as logs:
        while lines.take("xds.connected", "h", "gw-1"):
            pass
    assert logs[0]["lines"] > 4_000
