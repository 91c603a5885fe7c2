"""State of a pool, effect of changes, capacity and growth."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.planning.demand_growth import growth_projection
from chaos.planning.error import PlanError
from chaos.planning.fleet_capacity import WaitPromise, fleet_capacity, most_arrivals_kept, spares_per_nine
from chaos.planning.objective_outlook import objective_outlooks
from chaos.planning.pool_change import WhatIfChange, changed_pool, pool_outcome
from chaos.planning.pool_situation import (
    EngineSlots,
    PoolSituation,
    chosen_pool,
    planned_objectives,
    pool_from_server,
    uniform_engines,
)
from policies.objectives import Objective, ObjectiveKind
from tests.xds_server.admin_api import rows
from xds_server.admin_api.status_types import EngineStatus

POOL = uniform_engines(engines=60, slots=8, service_s=4.0, arrivals_per_s=100, zones=3, max_wait_s=2.0)
PROMISE = WaitPromise()


def row(name: str, zone: str = "a", **more: object) -> EngineStatus:
    known = {"slots": 8.0, "service_s": 2.0, "in_flight": 4, "done_per_s": 2.0, **more}
    return rows.engine_status(name, zone=zone, **known)


CHAT = rows.pool_status("chat", arrivals_per_s=6.0, ceiling=36, held=4, slots=16.0)


def test_pool_is_read_from_server_rows() -> None:
    found = pool_from_server([CHAT], [row("e0"), row("e1", "b", health="UNHEALTHY"), row("e2", pool="other")], "")
    assert [(one.name, one.zone, one.up) for one in found.engines] == [("e0", "a", True), ("e1", "b", False)]
    assert (found.slots, found.service_s, found.arrivals_per_s) == (8.0, 2.0, 6.0)
    # (36 - 4) / 16 slots: as many again as the slots may wait, for the length of a call.
    assert found.max_wait_s == pytest.approx(2.0)


def test_full_engine_service_time_excludes_waiting() -> None:
    found = pool_from_server([CHAT], [row("e0", in_flight=16, done_per_s=4.0, service_s=4.0)], "chat")
    assert found.service_s == pytest.approx(8 / 4)


def test_idle_engine_gets_the_usual_service_time() -> None:
    found = pool_from_server(
        [CHAT], [row("e0"), row("e1", service_s=None, in_flight=None, done_per_s=None)], "chat"
    )
    assert found.engines[1].service_s == 2.0


def test_server_without_data_is_refused() -> None:
    with pytest.raises(PlanError, match="no traffic reported"):
        pool_from_server([replace(CHAT, arrivals_per_s=None)], [row("e0")], "")
    with pytest.raises(PlanError, match="service time is unknown"):
        pool_from_server([CHAT], [row("e0", service_s=None, in_flight=None)], "")
    with pytest.raises(PlanError, match="pools: a, b"):
        chosen_pool(["b", "a"], "")
    with pytest.raises(PlanError, match="unknown pool 'c'"):
        chosen_pool(["b", "a"], "c")


def test_queue_room_equals_the_admission_limit() -> None:
    queue = POOL.queue()
    assert queue is not None
    assert (queue.servers, queue.room) == (480, 480 * 3 // 2)


def test_unequal_engines_add_up_by_throughput() -> None:
    pool = PoolSituation(
        pool="",
        engines=(
            EngineSlots(name="fast", zone="a", slots=4, service_s=1.0),
            EngineSlots(name="slow", zone="a", slots=4, service_s=4.0),
        ),
        arrivals_per_s=1,
        max_wait_s=None,
        source="",
    )
    assert pool.capacity_per_s == 5
    assert pool.service_s == pytest.approx(8 / 5)
    assert changed_pool(pool, WhatIfChange(lose_engines=1)).up[0].name == "slow"


@given(st.integers(0, 59), st.floats(0.1, 4), st.floats(0.5, 3))
@settings(max_examples=40)
def test_more_losses_never_help(lost: int, load: float, slower: float) -> None:
    change = WhatIfChange(lose_engines=lost, load_times=load, slower_times=slower)
    then = pool_outcome(changed_pool(POOL, change))
    worse = pool_outcome(changed_pool(POOL, replace(change, lose_engines=lost + 1)))
    assert worse.refused >= then.refused - 1e-9
    # What can be served sets what is refused, when much more comes.
    if then.pressure > 1.2:
        assert then.refused == pytest.approx(1 - 1 / then.pressure, abs=0.02)
    assert then.answered_per_s <= then.arrivals_per_s


def test_lost_zone_under_load_sheds_and_bounds_the_wait() -> None:
    then = pool_outcome(changed_pool(POOL, WhatIfChange(lose_zones=("zone-1",))))
    assert then.engines == 40
    assert then.refused == pytest.approx(0.2, abs=1e-3)
    assert then.wait_mean_s <= 2.0
    assert then.in_flight == pytest.approx(then.answered_per_s * (then.wait_mean_s + 4.0), rel=1e-6)


def test_everything_is_refused_without_engines() -> None:
    zones = ("zone-0", "zone-1", "zone-2")
    assert pool_outcome(changed_pool(POOL, WhatIfChange(lose_zones=zones))).refused == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (WhatIfChange(lose_zones=("z",)), "zone 'z' has no engine in rotation; zones: zone-0"),
        (WhatIfChange(lose_engines=61), "60 are in"),
        (WhatIfChange(load_times=-1), "load factor"),
        (WhatIfChange(slower_times=0), "slowdown factor"),
    ],
)
def test_impossible_change_is_refused(change: WhatIfChange, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        changed_pool(POOL, change)


def test_capacity_reports_zone_loss_and_need() -> None:
    found = fleet_capacity(POOL, PROMISE)
    assert found.whole.kept
    assert [one.kept for one in found.without_zone] == [False] * 3
    assert found.whole.now.in_flight == pytest.approx(400, abs=0.1), "Little's law"
    enough = uniform_engines(engines=found.need, slots=8, service_s=4.0, arrivals_per_s=100)
    assert fleet_capacity(enough, PROMISE).whole.kept
    assert not fleet_capacity(replace(enough, engines=enough.engines[1:]), PROMISE).whole.kept
    assert found.need_with_zone_lost is not None
    wider = uniform_engines(engines=found.need_with_zone_lost, slots=8, service_s=4.0, arrivals_per_s=100, zones=3)
    assert all(one.kept for one in fleet_capacity(wider, PROMISE).without_zone)


def test_each_nine_needs_at_least_as_many_spares() -> None:
    found = spares_per_nine(52, 0.005, (1e-2, 1e-3, 1e-4), cost_per_hour=2)
    assert sum(more for _, more in found) == found[-1][0].spares
    assert all(more >= 0 for _, more in found)


def test_growth_reaches_capacity() -> None:
    one_zone = uniform_engines(engines=60, slots=8, service_s=4.0, arrivals_per_s=100)
    found = growth_projection(one_zone, PROMISE, growth=0.05, lead_months=2, months=6)
    assert found.runs_out is not None
    assert 100 * 1.05**found.runs_out == pytest.approx(most_arrivals_kept(one_zone, PROMISE))
    assert found.order_by == pytest.approx(found.runs_out - 2)
    assert [one.engines_needed for one in found.months] == sorted(one.engines_needed for one in found.months)
    before = found.months[3]
    assert before.engines_needed <= 60 < found.months[4].engines_needed


def test_growth_exceeds_capacity_earlier_without_a_zone() -> None:
    light = replace(POOL, arrivals_per_s=60)
    found = growth_projection(light, PROMISE, growth=0.05)
    assert found.runs_out is not None
    assert found.runs_out_without_zone is not None
    assert found.runs_out_without_zone < found.runs_out
    assert found.order_by == found.runs_out_without_zone


def test_constant_load_never_runs_out() -> None:
    found = growth_projection(replace(POOL, arrivals_per_s=60), PROMISE, growth=-0.01)
    assert (found.runs_out, found.order_by) == (None, None)
    assert growth_projection(POOL, PROMISE, growth=0.0).runs_out_without_zone == 0.0


@pytest.mark.parametrize(
    "wrong", [{"growth": -1.0}, {"growth": 0.1, "months": 0}, {"growth": 0.1, "lead_months": -1}]
)
def test_invalid_projection_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(PlanError):
        growth_projection(POOL, PROMISE, **wrong)  # type: ignore[arg-type]


def promised(measured_s: float, limit_s: float, target: float = 0.99) -> PoolSituation:
    """The pool at 83 % load, with objectives for latency and good requests."""
    latency = Objective(name="total-p99", kind=ObjectiveKind.TOTAL, target=target, limit_s=limit_s)
    good = Objective(name="good", kind=ObjectiveKind.GOOD, target=0.999)
    measured = [("talk/total-p99", latency, measured_s), ("talk/good", good, None)]
    return replace(POOL, objectives=planned_objectives(POOL, measured))


def test_outlook_without_a_change_is_what_was_measured() -> None:
    latency, good = objective_outlooks(promised(11.0, 12.0))
    assert latency.expected_s == pytest.approx(11.0)
    assert latency.kept
    assert good.kept
    assert not objective_outlooks(promised(13.0, 12.0))[0].kept


def test_outlook_adds_the_wait_and_scales_the_service_time() -> None:
    pool = promised(11.0, 12.0)
    slower = objective_outlooks(changed_pool(pool, WhatIfChange(slower_times=1.1)))[0]
    assert slower.expected_s == pytest.approx(12.25, abs=0.15), "11 s times 1.1, and some wait"
    assert not slower.kept
    overload = changed_pool(pool, WhatIfChange(lose_zones=("zone-1",)))
    latency, good = objective_outlooks(overload)
    # The queue is full: the mean wait is what the admission limit allows, 2 s; few wait longer.
    assert latency.expected_s == pytest.approx(13.25, abs=0.15)
    assert good.good == pytest.approx(0.8, abs=1e-3)
    assert (latency.kept, good.kept) == (False, False)
    endless = objective_outlooks(replace(overload, max_wait_s=None))
    assert endless[0].expected_s == math.inf
    assert endless[1].good == pytest.approx(0.8)


def test_objectives_of_a_pool_without_engines_are_missed() -> None:
    latency, good = objective_outlooks(replace(promised(11.0, 12.0), engines=()))
    assert (latency.kept, good.kept) == (None, False)


def test_pool_without_engines_has_no_queue() -> None:
    empty = replace(POOL, engines=())
    assert empty.queue() is None
    assert math.isnan(empty.service_s)
    with pytest.raises(PlanError):
        fleet_capacity(empty, PROMISE)
