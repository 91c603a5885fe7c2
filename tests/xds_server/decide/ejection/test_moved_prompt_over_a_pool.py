"""One request must not eject a second engine, and a second hung engine must still be found."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.report import PREFILL_READING, EngineReport, Evidence, ReportSource, Verdict
from policies.model import PolicySet
from policies.pool import EnginePool
from policies.resilience import ResilienceSpec
from xds_server.decide.decide import decide
from xds_server.decide.decision_memory import NO_MEMORY
from xds_server.decide.decisions import EngineDecision, Health
from xds_server.decide.ejection.moved_requests import (
    LONGEST_WATCH_S,
    NO_WATCH,
    RETRY_WINDOW_S,
    watched_engines,
)
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.model.fleet import EngineId, declared, with_report

PROXIES = ConnectedProxies(by_role={"gateway": 1}, calling_zones=frozenset())
LIMIT_S = 3.0
TICK_S = 0.25
TOGETHER_S = 0.5


class Pool:
    """Engines that stand still in a prefill or in decodes, decided on every 0.25 s."""

    def __init__(self, engines: int = 4) -> None:
        endpoints = [{"name": f"e{one}", "address": "10.0.0.1", "port": 8000 + one} for one in range(engines)]
        spec = {"model": "m", "endpoints": endpoints}
        pool = EnginePool.model_validate({"metadata": {"name": "p"}, "spec": spec})
        effective = {"p": ResilienceSpec()}
        self.policies = PolicySet(pools={"p": pool}, routes={}, policies={}, effective=effective)
        self.fleet = declared(self.policies)
        self.memory = NO_MEMORY
        self.now_s = 0.0
        self.stalls: dict[str, tuple[float, bool]] = {}
        self.engines = [f"e{one}" for one in range(engines)]

    def stall(self, engine: str, *, prefill: bool = True) -> None:
        self.stalls[engine] = (self.now_s, prefill)

    def tick(self, seconds: float = TICK_S) -> Mapping[EngineId, EngineDecision]:
        """Report and decide for so long."""
        for _ in range(max(1, round(seconds / TICK_S))):
            self.now_s += TICK_S
            for engine in self.engines:
                self.fleet = with_report(self.fleet, self._report(engine), self.now_s)
            decisions, self.memory = decide(
                self.policies, self.fleet, self.memory, proxies=PROXIES, now_s=self.now_s
            )
        return decisions.engines

    def _report(self, engine: str) -> EngineReport:
        since_s, prefill = self.stalls.get(engine, (self.now_s, True))
        hung = self.now_s - since_s >= (LIMIT_S if prefill else 1.0)
        return EngineReport(
            pool="p",
            engine=engine,
            verdict=Verdict.HUNG if hung else Verdict.READY,
            evidence="no token",
            observed_at_s=self.now_s,
            source=ReportSource.AGENT,
            reasons=(
                Evidence(
                    reading=PREFILL_READING if prefill else "tokens",
                    sentence="no token",
                    age_s=self.now_s - since_s,
                ),
            ),
        )

    def out(self) -> str:
        """Names of ejected engines."""
        found = self.tick()
        return " ".join(one for one in self.engines if found[EngineId("p", one)].health is not Health.HEALTHY)


def test_prompt_retried_over_a_pool_ejects_one_engine() -> None:
    pool = Pool()
    for engine in pool.engines:
        pool.stall(engine)
        pool.tick(LIMIT_S + 2.0)
        assert pool.out() == "e0"
    watched = pool.tick()[EngineId("p", "e3")]
    assert "may hold a request that moved from e0" in watched.reason
    pool.stalls.clear()
    assert pool.tick(1.0)
    assert pool.out() == ""


def test_standstill_of_decodes_ejects_at_once() -> None:
    pool = Pool()
    pool.stall("e0")
    pool.tick(LIMIT_S + 2.0)
    pool.stall("e1", prefill=False)
    pool.tick(1.5)
    assert pool.out() == "e0 e1"


def test_engines_that_stop_together_are_ejected_together() -> None:
    pool = Pool()
    pool.stall("e0")
    pool.tick(TICK_S)
    pool.stall("e1")
    pool.tick(LIMIT_S + 0.5)
    assert pool.out() == "e0 e1"


def test_watched_engine_that_does_not_recover_is_ejected_after_the_longest_watch() -> None:
    pool = Pool()
    pool.stall("e0")
    pool.tick(LIMIT_S + 2.0)
    pool.stall("e1")
    pool.tick(LONGEST_WATCH_S - 1.0)
    assert pool.out() == "e0"
    pool.tick(1.0)
    assert pool.out() == "e0 e1"


def test_standstill_long_after_the_first_is_another_request() -> None:
    pool = Pool()
    pool.stall("e0")
    pool.tick(LIMIT_S + 1.0)
    pool.stalls.clear()
    pool.tick(RETRY_WINDOW_S)
    pool.stall("e1")
    pool.tick(LIMIT_S + 1.0)
    assert pool.out() == "e1"


def test_engine_alone_in_its_pool_is_ejected() -> None:
    pool = Pool(1)
    pool.stall("e0")
    pool.tick(LIMIT_S + 1.0)
    assert pool.out() == "e0"


@given(
    engines=st.integers(2, 6),
    route=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    step_s=st.floats(LIMIT_S, LONGEST_WATCH_S - 1.0),
    waits_s=st.floats(TOGETHER_S + TICK_S, RETRY_WINDOW_S - 1.0),
)
def test_one_prompt_never_ejects_a_second_engine(
    engines: int, route: list[int], step_s: float, waits_s: float
) -> None:
    """The prompt stops each engine on its route for ``step_s``, and moves after ``waits_s``."""
    watch, judged = NO_WATCH, set[EngineId]()
    stalls: dict[EngineId, float] = {}
    now_s, next_s, left = 0.0, 0.0, list(route)
    while left or stalls:
        stalls = {key: at_s for key, at_s in stalls.items() if now_s - at_s < step_s}
        if left and now_s >= next_s:
            key = EngineId("p", f"e{left.pop(0) % engines}")
            if key not in stalls:
                stalls[key], next_s = now_s, now_s + waits_s
        hung = {key: at_s for key, at_s in stalls.items() if now_s - at_s >= LIMIT_S}
        watch, watched = watched_engines(watch, hung, together_s=TOGETHER_S, now_s=now_s)
        judged |= hung.keys() - watched.keys()
        now_s += TICK_S
    assert len(judged) <= 1


@given(starts=st.lists(st.floats(0.0, 100.0), min_size=2, max_size=5))
def test_every_hung_engine_is_found_within_the_longest_watch(starts: list[float]) -> None:
    watch, found_s = NO_WATCH, dict[EngineId, float]()
    now_s = 0.0
    while now_s < 140.0:
        hung = {EngineId("p", f"e{place}"): at_s for place, at_s in enumerate(starts) if now_s - at_s >= LIMIT_S}
        watch, watched = watched_engines(watch, hung, together_s=TOGETHER_S, now_s=now_s)
        for key in hung.keys() - watched.keys():
            found_s.setdefault(key, now_s)
        assert found_s.keys() == hung.keys() - watched.keys(), "an ejected engine stays ejected"
        now_s += TICK_S
    for place, at_s in enumerate(starts):
        assert found_s[EngineId("p", f"e{place}")] <= at_s + LONGEST_WATCH_S + TICK_S
    first = min(range(len(starts)), key=lambda place: starts[place])
    assert found_s[EngineId("p", f"e{first}")] == pytest.approx(starts[first] + LIMIT_S, abs=2 * TICK_S)
