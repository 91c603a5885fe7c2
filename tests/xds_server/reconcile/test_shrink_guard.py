"""Losing more than half at once is held back, counted in resources or in engines."""

from xds_server.model.fleet import Engine, EngineId, fleet_of, with_pod_states
from xds_server.model.pod_state import PodPhase, PodState
from xds_server.model.snapshot import resource, snapshot
from xds_server.model.type_urls import CLUSTER, ENDPOINT, ROUTE
from xds_server.model.view import View
from xds_server.reconcile.shrink_guard import drop_reason, shrink_reason, view_parts


def engines(pool: str, count: int) -> tuple[Engine, ...]:
    return tuple(
        Engine(
            id=EngineId(pool, str(number)),
            address="10.0.0.1",
            port=number + 1,
            zone="",
            region="",
            slots=1,
            weight=1,
            tensor_parallel_group="",
            labels={},
        )
        for number in range(count)
    )


def test_shrink_guard_counts_resources_and_engines() -> None:
    served = snapshot([resource(CLUSTER, "a", b"1"), resource(ENDPOINT, "a", b"2"), resource(ROUTE, "r", b"3")])
    fleet = fleet_of({"a": engines("a", 7), "unserved": engines("unserved", 100)})
    assert view_parts(served, fleet) == {"CDS a": 1, "EDS a": 1, "RDS r": 1, "engines of a": 7}


def test_shrink_guard_ignores_terminating_pods() -> None:
    served = snapshot([resource(CLUSTER, "a", b"1")])
    leaving = PodState(standing=PodPhase.LEAVING, reason="its pod is being deleted")
    unfit = PodState(standing=PodPhase.UNFIT, reason="its node is tainted")
    whole = fleet_of({"a": engines("a", 4)})
    down = with_pod_states(whole, {EngineId("a", str(number)): leaving for number in (1, 2, 3)})
    broken = with_pod_states(whole, {EngineId("a", str(number)): unfit for number in (1, 2, 3)})
    left = view_parts(served, fleet_of({"a": engines("a", 1)}))
    assert not drop_reason(view_parts(served, down), left)
    assert "3 engines of a" in drop_reason(view_parts(served, whole), left)
    assert "3 engines of a" in drop_reason(view_parts(served, broken), left)
    # A terminating engine does not compensate for a lost one.
    assert drop_reason(view_parts(served, whole), view_parts(served, down))


def test_shrink_guard_holds_an_emptied_pool() -> None:
    others = {f"CDS {number}": 1 for number in range(100)}
    before = {**others, "CDS a": 1, "engines of a": 2}
    assert drop_reason(before, {**before, "engines of a": 0}) == ("would leave pool a with none of its 2 engines")
    assert not drop_reason(before, {**before, "engines of a": 1})
    assert not drop_reason(before, others)
    assert not drop_reason({**before, "engines of a": 0}, {**before, "engines of a": 0})


def test_shrink_guard_allows_half() -> None:
    four = {"CDS a": 1, "CDS b": 1, "CDS c": 1, "CDS d": 1}
    assert not drop_reason(four, {"CDS a": 1, "CDS b": 1})
    assert drop_reason(four, {"CDS a": 1, "new 1": 1, "new 2": 1, "new 3": 1}) == (
        "would remove 3 of 4 resources and engines at once: CDS b, CDS c, CDS d"
    )
    assert drop_reason(four, {})
    assert not drop_reason({}, {})


def test_shrink_guard_counts_engines_of_a_shrunk_pool() -> None:
    reason = drop_reason({"CDS a": 1, "engines of a": 60}, {"CDS a": 1, "engines of a": 5})
    assert reason == "would remove 55 of 61 resources and engines at once: 55 engines of a"


def test_shrink_guard_triggers_on_one_view() -> None:
    all_of_it, only_b = View(), View(pools=frozenset({"b"}))
    before = {all_of_it: {"CDS a": 1, "CDS b": 1, "CDS c": 1}, only_b: {"CDS b": 1}}
    after = {all_of_it: {"CDS a": 1, "CDS c": 1}, only_b: {}}
    assert "CDS b" in shrink_reason(before, after)
    assert not shrink_reason({all_of_it: before[all_of_it]}, after)
    assert shrink_reason(before, {all_of_it: before[all_of_it]})
