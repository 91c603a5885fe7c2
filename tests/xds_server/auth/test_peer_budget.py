"""CPU time of peers: by node and by host, with a floor for nodes that use little."""

import asyncio
import time

from xds_server.auth.peer_budget import MAX_REMEMBERED, MAX_WAIT_S, CpuBudget, CpuLimits
from xds_server.auth.stream_limits import PeerPacer
from xds_server.model.token_bucket import RateLimit

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
    budget.spend("h", "modest", 0.01, 0.0)
    assert budget.wait_s("h", "modest", 0.0) == 0.0
    assert budget.wait_s("elsewhere", "greedy-0", 0.0) == 0.0


def test_remembered_peers_are_limited() -> None:
    budget = CpuBudget(LIMITS)
    for number in range(MAX_REMEMBERED + 100):
        budget.spend(f"h{number}", "n", 1.0, 0.0)
    assert len(budget._nodes) == len(budget._hosts) == len(budget._floors) == MAX_REMEMBERED


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
