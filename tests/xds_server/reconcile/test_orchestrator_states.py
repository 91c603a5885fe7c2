"""Pod states persist without news, cost nothing then, and apply to no other engine."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.report import EngineReport, Verdict
from xds_server.model.fleet import Engine, EngineId, Fleet, fleet_of, with_report, with_traffic
from xds_server.model.pod_state import PodPhase, PodState
from xds_server.reconcile.orchestrator_states import HELD_S, OrchestratorStates

NAMES = ("a", "b", "c")


def key(name: str) -> EngineId:
    return EngineId("p", name)


def said(standing: PodPhase) -> PodState:
    return PodState(standing=standing, reason=f"a test says {standing}")


def fleet(*names: str, address: str = "10.0.0.1") -> Fleet:
    return fleet_of(
        {
            "p": tuple(
                Engine(
                    id=key(name), address=address, port=8000 + NAMES.index(name), zone="", region="", slots=1,
                    weight=1, tensor_parallel_group="", labels={},
                )
                for name in names
            )
        }
    )  # fmt: skip


def standings(of: Fleet) -> dict[str, PodPhase]:
    return {one.id.engine: one.pod_phase for one in of.pools["p"]}


class Watched(dict[str, tuple[Engine, ...]]):
    """Pools that count iterations over all of them."""

    looks = 0

    def items(self):  # type: ignore[no-untyped-def]  # as a dict's
        self.looks += 1
        return super().items()

    def __iter__(self) -> Iterator[str]:
        self.looks += 1
        return super().__iter__()


def test_unchanged_pod_states_visit_no_engine() -> None:
    words, pools = OrchestratorStates(), Watched(fleet(*NAMES).pools)
    carried = replace(fleet(*NAMES), pools=pools)
    words.update({key("b"): said(PodPhase.UNFIT)}, carried, 0.0)
    carried = replace(words.apply_cached(carried, 0.0), pools=Watched(words.apply_cached(carried, 0.0).pools))
    assert isinstance(carried.pools, Watched)
    for now_s in range(1, 50):
        assert words.apply_cached(carried, float(now_s)) is carried
        assert words.apply_cached(with_traffic(carried, {}), float(now_s)).pools is carried.pools
    assert carried.pools.looks == 0


@pytest.mark.parametrize(("uid", "held"), [("", True), ("first", True), ("second", False)])
def test_returned_engine_ignores_the_end_of_its_predecessor(uid: str, held: bool) -> None:
    words, carried = OrchestratorStates(), fleet(*NAMES)
    words.update({key("a"): said(PodPhase.LEAVING)}, carried, 0.0, {key("a"): "first"})
    carried = words.apply_cached(carried, 0.0)
    words.update({key("a"): said(PodPhase.GONE)}, carried, 1.0, {key("a"): "first"})
    carried = words.apply_cached(carried, 1.0)
    words.update({}, carried, 2.0)
    assert standings(words.apply_cached(carried, 2.0))["a"] is PodPhase.GONE
    # The policies without it arrived, and now those with its successor.
    fresh = fleet(*NAMES)
    words.update({}, fresh, 3.0, {key("a"): uid} if uid else {})
    carried = words.apply_cached(fresh, 3.0)
    assert (standings(carried)["a"] is PodPhase.GONE) is held
    assert standings(words.apply_cached(carried, 2.0 + HELD_S))["a"] is PodPhase.PRESENT, "a reported end expires"


def test_simultaneous_replacement_is_another_engine() -> None:
    words, carried = OrchestratorStates(), fleet(*NAMES)
    words.update({key("a"): said(PodPhase.LEAVING)}, carried, 0.0, {key("a"): "first"})
    words.update({}, carried, 1.0, {key("a"): "second"})
    assert standings(words.apply_cached(carried, 1.0))["a"] is PodPhase.PRESENT


STEPS = st.one_of(
    st.tuples(
        st.just("say"),
        st.dictionaries(st.sampled_from(NAMES), st.sampled_from(PodPhase)),
        st.dictionaries(st.sampled_from(NAMES), st.sampled_from(("first", "second"))),
    ),
    st.tuples(st.just("pass"), st.floats(0, 40)),
    st.tuples(st.just("report"), st.sampled_from(NAMES)),
    st.tuples(st.just("edit"), st.lists(st.sampled_from(NAMES), unique=True), st.sampled_from(("1", "2"))),
    st.tuples(st.just("ask of the fleet of the round before")),
)


@given(steps=st.lists(STEPS, max_size=25))
def test_cached_pod_states_equal_uncached(steps: list[tuple[object, ...]]) -> None:
    words, carried, before, now_s = OrchestratorStates(), fleet(*NAMES), fleet(*NAMES), 0.0
    for number, step in enumerate(steps):
        match step:
            case ("say", Mapping() as standing, Mapping() as uids):
                told = {key(name): said(one) for name, one in standing.items()}
                words.update(told, carried, now_s, {key(name): uid for name, uid in uids.items()})
            case ("pass", float(passed_s)):
                now_s += passed_s
            case ("report", str(name)):
                told_of = EngineReport(
                    pool="p", engine=name, verdict=Verdict.READY, evidence="", observed_at_s=float(number)
                )
                carried = with_report(carried, told_of, now_s)
            case ("edit", list(names), str(host)):
                carried = fleet(*names, address=f"10.0.0.{host}")
            case _:
                words.apply(before, now_s)  # must not count as an update of the carried fleet
        before, carried = carried, words.apply_cached(carried, now_s)
        assert carried == words.apply(carried, now_s)
