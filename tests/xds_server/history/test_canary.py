"""Whom a canary takes, and what speaks against it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.history.canary import MIN_REQUESTS, Seen, Word, chosen, judged

NODES = st.dictionaries(st.text(min_size=1), st.sampled_from(["", "z1", "z2", "z3"]), max_size=60)


@given(NODES, st.floats(0.1, 100))
def test_the_share_is_within_bounds_and_the_same_each_time(zones: dict[str, str], percent: float) -> None:
    found = chosen(zones, percent)
    assert found <= zones.keys()
    assert bool(found) == bool(zones)
    assert abs(len(found) - len(zones) * percent / 100) <= 1
    assert chosen(dict(reversed(zones.items())), percent) == found


@given(NODES, st.floats(0.1, 100))
def test_zones_take_turns(zones: dict[str, str], percent: float) -> None:
    found = chosen(zones, percent)
    taken = {zone: sum(zones[node] == zone for node in found) for zone in zones.values()}
    whole = {zone: sum(one == zone for one in zones.values()) for zone in zones.values()}
    most = max(taken.values(), default=0)
    assert all(count >= min(most - 1, whole[zone]) for zone, count in taken.items())


@given(NODES, st.floats(0.1, 50))
def test_a_larger_share_has_the_smaller_one_in_it(zones: dict[str, str], percent: float) -> None:
    assert chosen(zones, percent) <= chosen(zones, 2 * percent)


@given(NODES, st.text(min_size=1))
def test_one_that_comes_moves_at_most_one(zones: dict[str, str], new: str) -> None:
    with_new = {**zones, new: zones.get(new, "z1")}
    assert len(chosen(with_new, 20) ^ chosen(zones, 20)) <= 3


def seen(done: float = 1000, failed: float = 0, shed: float = 0, times_s: list[float] | None = None) -> Seen:
    found = Seen(done=done, failed=failed, shed=shed)
    found.answers_s.extend(times_s or [])
    return found


@pytest.mark.parametrize(
    ("canary", "others", "word", "said"),
    [
        (seen(), seen(), Word.GOOD, "0 % fail"),
        (seen(200, failed=20), seen(1800), Word.BAD, "10 % of 200 requests fail"),
        (seen(200, failed=20), seen(1800, failed=180), Word.GOOD, "10 % elsewhere"),  # the engines are at fault
        (seen(60, failed=1), seen(600), Word.GOOD, "elsewhere"),  # one failure is chance
        (seen(2000, failed=30), seen(20000), Word.GOOD, "elsewhere"),  # sure, and too little to matter
        (seen(200, shed=40), seen(1800), Word.BAD, "are shed"),
        (seen(shed=0, done=MIN_REQUESTS - 1), seen(), Word.UNKNOWN, "the canary saw 49"),
        (seen(), seen(3), Word.UNKNOWN, "the others saw 3"),
        (seen(20, failed=20), seen(), Word.UNKNOWN, "the canary saw 20"),
        (seen(times_s=[0.1] * 290 + [2.0] * 10), seen(times_s=[0.1] * 300), Word.BAD, "take 2 s"),
        (seen(times_s=[0.1] * 100 + [2.0] * 10), seen(times_s=[0.1] * 300), Word.GOOD, "fail"),
        (seen(times_s=[0.003] * 300), seen(times_s=[0.001] * 300), Word.GOOD, "fail"),
    ],
)
def test_what_is_said(canary: Seen, others: Seen, word: Word, said: str) -> None:
    found = judged(canary, others)
    assert found.word is word
    assert said in found.reasons[0]


@pytest.mark.parametrize(
    ("canary", "others", "slo_percent", "word", "said"),
    [
        (seen(), seen(), 99, Word.GOOD, "100 % of 1000 requests are answered well, and 99 % are asked for"),
        (seen(), seen(0), 99, Word.GOOD, "100 %"),  # nobody to compare it with
        (
            seen(1000, failed=100),
            seen(1000, failed=100),
            99,
            Word.BAD,
            "90 % of 1000",
        ),  # as the others, and too bad
        (seen(900, shed=100), seen(900, shed=100), 99, Word.BAD, "90 % of 1000"),  # shed is not answered
        (seen(1000, failed=15), seen(), 99, Word.UNKNOWN, "98.5 %"),  # short of it, and maybe by chance
        (seen(1000, failed=1), seen(), 100, Word.BAD, "99.9 %"),
        (seen(1000, failed=10), seen(), 99, Word.GOOD, "99 %"),
        (seen(MIN_REQUESTS - 1), seen(0), 99, Word.UNKNOWN, "the canary saw 49"),
        (seen(200, failed=20), seen(1800), 50, Word.BAD, "10 % of 200 requests fail"),
    ],
)
def test_what_is_said_of_an_objective(
    canary: Seen, others: Seen, slo_percent: float, word: Word, said: str
) -> None:
    found = judged(canary, others, slo_percent)
    assert found.word is word
    assert said in found.reasons[0]


@given(st.integers(0, 2**32), st.floats(0, 0.5))
def test_the_same_policies_are_hardly_ever_bad(seed: int, failing: float) -> None:
    rng = random.Random(seed)

    def side(requests: int) -> Seen:
        return seen(requests, failed=sum(rng.random() < failing for _ in range(requests)))

    bad = sum(judged(side(100), side(400)).word is Word.BAD for _ in range(20))
    assert bad <= 2


@given(st.integers(50, 5000), st.integers(50, 5000), st.data())
def test_more_failures_never_make_it_better(done: int, others: int, data: st.DataObject) -> None:
    failed = data.draw(st.integers(0, done - 1))
    elsewhere = seen(others, failed=data.draw(st.integers(0, others)))
    if judged(seen(done, failed=failed), elsewhere).word is Word.BAD:
        assert judged(seen(done, failed=failed + 1), elsewhere).word is Word.BAD
