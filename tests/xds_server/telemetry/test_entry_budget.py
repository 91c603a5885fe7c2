"""Division of the access log budget: a floor for each node, and sampling of those above their part only."""

from hypothesis import given
from hypothesis import strategies as st

from xds_server.telemetry.entry_budget import MAX_NODES, QUIET_S, EntryBudget, Reporter, fair_part

A, B, C = Reporter("h1", "a"), Reporter("h2", "b"), Reporter("h2", "c")


def played(
    budget: EntryBudget, per_s: dict[Reporter, float], seconds: int, from_s: int = 0
) -> dict[Reporter, float]:
    """Admitted entries by node in the last second; each node sends its entries in tenths of a second."""
    admitted: dict[Reporter, float] = {}
    for second in range(from_s, from_s + seconds):
        admitted = dict.fromkeys(per_s, 0.0)
        for tenth in range(10):
            now_s = second + tenth / 10
            for reporter, rate in per_s.items():
                if budget.admits(reporter, rate / 10, now_s):
                    admitted[reporter] += rate / 10
        list(budget.review(1.0, second + 1.0))
    return admitted


def test_nodes_below_their_part_are_not_affected_by_a_flood() -> None:
    budget = EntryBudget(per_s=1000.0)
    admitted = played(budget, {A: 1e6, B: 300.0, C: 200.0}, 30)
    assert (admitted[B], admitted[C]) == (300.0, 200.0)
    assert budget.shares.keys() == {"a"}
    assert budget.share(B, 30.0) == budget.share(C, 30.0) == 1.0


def test_flood_from_the_same_host_leaves_other_nodes_their_part() -> None:
    budget = EntryBudget(per_s=1000.0)
    flood, honest = Reporter("h", "flood"), Reporter("h", "honest")
    assert played(budget, {flood: 1e6, honest: 400.0}, 30)[honest] == 400.0
    assert budget.shares.keys() == {"flood"}


def test_one_busy_node_may_use_all_of_the_budget() -> None:
    budget = EntryBudget(per_s=1000.0)
    assert played(budget, {A: 990.0, B: 5.0}, 20) == {A: 990.0, B: 5.0}
    assert budget.shares == {}


def test_sampling_ends_after_the_flood() -> None:
    budget = EntryBudget(per_s=1000.0)
    played(budget, {A: 1e5, B: 10.0}, 20)
    assert budget.shares["a"] == 0.01
    played(budget, {A: 1.0, B: 10.0}, 90, from_s=20)
    assert budget.shares == {}


def test_shares_are_the_same_object_until_they_change() -> None:
    budget = EntryBudget(per_s=1000.0)
    played(budget, {A: 1e5}, 20)
    before = budget.shares
    played(budget, {A: 1e5}, 5, from_s=20)
    assert budget.shares is before


def test_drop_begins_once_until_it_has_ended() -> None:
    budget = EntryBudget(per_s=100.0)
    played(budget, {A: 1e5}, 3)
    assert budget.begins_to_drop(A)
    assert not budget.begins_to_drop(A)
    played(budget, {A: 1.0}, 2, from_s=3)
    assert budget.begins_to_drop(A)


def test_quiet_nodes_are_forgotten_and_the_number_is_limited() -> None:
    budget = EntryBudget()
    for number in range(MAX_NODES + 100):
        budget.admits(Reporter("h", str(number)), 1.0, 0.0)
    assert len(budget._accounts) <= MAX_NODES + 1
    list(budget.review(1.0, QUIET_S + 1.0))
    assert not budget._accounts


@given(st.floats(1, 1e6), st.lists(st.floats(0, 1e6), min_size=1, max_size=30))
def test_fair_part_fits_the_budget_and_no_demand_below_an_even_part_is_cut(
    budget: float, demands: list[float]
) -> None:
    part = fair_part(budget, demands)
    assert sum(min(part, one) for one in demands) <= budget * (1 + 1e-9)
    assert part >= budget / len(demands) * (1 - 1e-9)
