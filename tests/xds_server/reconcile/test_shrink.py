"""More than half gone at once is held back, whether it goes as resources or as engines."""

from xds_server.fleet import Engine, EngineId, fleet_of, with_words
from xds_server.fleet.orchestrator import OrchestratorWord, Standing
from xds_server.reconcile.shrink import dropped_too_much, held_back, parts
from xds_server.snapshot import resource, snapshot
from xds_server.translate.view import View
from xds_server.type_urls import CLUSTER, ENDPOINT, ROUTE


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


def test_parts_are_resources_and_engines() -> None:
    served = snapshot([resource(CLUSTER, "a", b"1"), resource(ENDPOINT, "a", b"2"), resource(ROUTE, "r", b"3")])
    fleet = fleet_of({"a": engines("a", 7), "unserved": engines("unserved", 100)})
    assert parts(served, fleet) == {"CDS a": 1, "EDS a": 1, "RDS r": 1, "engines of a": 7}


def test_engines_that_end_are_no_part_of_what_may_be_lost() -> None:
    served = snapshot([resource(CLUSTER, "a", b"1")])
    leaving = OrchestratorWord(standing=Standing.LEAVING, reason="its pod is being deleted")
    unfit = OrchestratorWord(standing=Standing.UNFIT, reason="its node is tainted")
    whole = fleet_of({"a": engines("a", 4)})
    down = with_words(whole, {EngineId("a", str(number)): leaving for number in (1, 2, 3)})
    broken = with_words(whole, {EngineId("a", str(number)): unfit for number in (1, 2, 3)})
    left = parts(served, fleet_of({"a": engines("a", 1)}))
    assert not dropped_too_much(parts(served, down), left)
    assert "3 engines of a" in dropped_too_much(parts(served, whole), left)
    assert "3 engines of a" in dropped_too_much(parts(served, broken), left)
    # One that ends does not make up for one that was lost.
    assert dropped_too_much(parts(served, whole), parts(served, down))


def test_a_pool_that_is_emptied_is_held_however_much_else_there_is() -> None:
    others = {f"CDS {number}": 1 for number in range(100)}
    before = {**others, "CDS a": 1, "engines of a": 2}
    assert dropped_too_much(before, {**before, "engines of a": 0}) == (
        "would leave the pool a without any of its 2 engines"
    )
    assert not dropped_too_much(before, {**before, "engines of a": 1})
    assert not dropped_too_much(before, others)
    assert not dropped_too_much({**before, "engines of a": 0}, {**before, "engines of a": 0})


def test_half_may_go_and_more_than_half_may_not() -> None:
    four = {"CDS a": 1, "CDS b": 1, "CDS c": 1, "CDS d": 1}
    assert not dropped_too_much(four, {"CDS a": 1, "CDS b": 1})
    assert dropped_too_much(four, {"CDS a": 1, "new 1": 1, "new 2": 1, "new 3": 1}) == (
        "would drop 3 of 4 resources and engines at once: CDS b, CDS c, CDS d"
    )
    assert dropped_too_much(four, {})
    assert not dropped_too_much({}, {})


def test_a_pool_cut_to_a_stump_counts_by_its_engines() -> None:
    reason = dropped_too_much({"CDS a": 1, "engines of a": 60}, {"CDS a": 1, "engines of a": 5})
    assert reason == "would drop 55 of 61 resources and engines at once: 55 engines of a"


def test_one_view_that_loses_too_much_is_enough() -> None:
    all_of_it, only_b = View(), View(pools=frozenset({"b"}))
    before = {all_of_it: {"CDS a": 1, "CDS b": 1, "CDS c": 1}, only_b: {"CDS b": 1}}
    after = {all_of_it: {"CDS a": 1, "CDS c": 1}, only_b: {}}
    assert "CDS b" in held_back(before, after)
    assert not held_back({all_of_it: before[all_of_it]}, after)
    assert held_back(before, {all_of_it: before[all_of_it]})
