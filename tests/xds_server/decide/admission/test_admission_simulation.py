"""The admission ceiling in a simulated pool: its promise holds for callers."""

import itertools

import pytest

from policies.resilience import ResilienceSpec
from tests.xds_server.decide.admission.pool_simulation import BATCH, INTERACTIVE, Simulation, Stage
from xds_server.model.pool_traffic import Proxy

FAULT_S, UNTIL_S = (8.0, 27.0), 38.0
TWO = tuple(Proxy(node=name, zone="", role="gateway") for name in ("a", "b"))


def limits(max_wait: str) -> ResilienceSpec:
    return ResilienceSpec.model_validate({"limits": {"maxWait": max_wait}})


def predicted(run: Simulation, wait_s: float) -> float:
    """Goodput during fault and recovery in percent: what half of the slots serve, plus one full queue."""
    start_s, end_s = FAULT_S
    came = [sum(a <= one.arrived_s < b for one in run.requests) for a, b in ((8.0, 38.0), (8.0, 27.5))]
    served = 32 / 0.5 * (end_s - start_s + 0.5 + wait_s)
    return 100 * (1 - (came[1] - served) / came[0])


@pytest.mark.parametrize(("max_wait", "wait_s"), [("250ms", 0.25), ("2s", 2.0), ("4640ms", 4.64)])
def test_losing_half_the_slots_costs_its_share_without_longer_waits(max_wait: str, wait_s: float) -> None:
    goodput, formula = [], []
    for seed in range(4):
        run = Simulation(
            Stage(
                rates=lambda _node, _now_s: (102.4, 0.0),
                crash_s=FAULT_S,
                crashing=4,
                resilience=limits(max_wait),
                seed=seed,
            )
        ).run()
        goodput.append(run.good(8, UNTIL_S))
        formula.append(predicted(run, wait_s))
        waits_s = run.waits(9, 27)
        assert waits_s[int(0.99 * len(waits_s))] <= 1.1 * wait_s + 0.3
        assert run.good(0, 8) == 100
    assert sum(goodput) / 4 == pytest.approx(sum(formula) / 4, abs=1)


def test_overestimated_service_time_is_corrected_in_seconds() -> None:
    run = Simulation(Stage(rates=lambda _node, _now_s: (102.4, 0.0), declared_s=2.0, until_s=8)).run()
    assert run.admissions[0][1].decided.total == 128
    assert run.admissions[-1][1].decided.total == pytest.approx(320, rel=0.1)
    assert all(one.service_s == pytest.approx(0.5, rel=0.15) for one in run.capacity.capacities.values())


@pytest.mark.parametrize("swapped", [False, True])
def test_shortage_is_shared_by_demand_even_when_it_swaps(swapped: bool) -> None:
    def rates(node: str, now_s: float) -> tuple[float, float]:
        return (77.0 if (node == "a") != (swapped and now_s > 17) else 25.6), 0.0

    run = Simulation(Stage(rates=rates, proxies=TWO, crash_s=FAULT_S, crashing=4)).run()
    assert run.good(8, UNTIL_S) == pytest.approx(predicted(run, 2.0), abs=2)
    assert run.good(8, UNTIL_S, "a") == pytest.approx(run.good(8, UNTIL_S, "b"), abs=3)
    moves = sum(
        one[1].decided.by_proxy is not two[1].decided.by_proxy for one, two in itertools.pairwise(run.admissions)
    )
    assert moves <= 5 * UNTIL_S


def test_lost_telemetry_of_one_proxy_leaves_the_other_its_part() -> None:
    run = Simulation(
        Stage(
            rates=lambda _node, _now_s: (51.2, 0.0),
            proxies=TWO,
            crash_s=FAULT_S,
            crashing=4,
            telling=lambda node, now_s: node == "a" or now_s < 12,
        )
    ).run()
    assert run.good(8, UNTIL_S) == pytest.approx(predicted(run, 2.0), abs=2)
    assert run.good(8, UNTIL_S, "a") == pytest.approx(run.good(8, UNTIL_S, "b"), abs=3)


def test_interactive_requests_are_served_under_batch_overload() -> None:
    run = Simulation(Stage(rates=lambda _node, _now_s: (51.0, 120.0))).run()
    assert run.good(4, UNTIL_S, of=INTERACTIVE) >= 99.5
    spare = (64 / 0.5 - 51) / 120
    assert run.good(4, UNTIL_S, of=BATCH) == pytest.approx(100 * spare, abs=4)


def test_starting_class_is_admitted_while_the_other_has_all_places() -> None:
    run = Simulation(Stage(rates=lambda _node, now_s: (60.0 if now_s > 10 else 0.0, 200.0), until_s=20)).run()
    assert run.good(10, 11, of=INTERACTIVE) >= 90
    assert run.good(11, 20, of=INTERACTIVE) >= 99.5


def test_rare_sidecar_requests_are_admitted_while_the_pool_has_room() -> None:
    sidecars = tuple(Proxy(node=f"s{place}", zone="", role="sidecar") for place in range(100))
    run = Simulation(Stage(rates=lambda _node, _now_s: (1.0, 0.0), proxies=sidecars, until_s=10)).run()
    assert run.good(0, 10) >= 99.5
