"""Engines as arrays: no call is lost or made up on its way through one."""

import numpy as np
import pytest

from chaos.simulator.arrays import EngineArrays

PATIENCE = 12


def engines(count: int = 6, slots: int = 4) -> EngineArrays:
    rate = np.ones(count)
    return EngineArrays(
        np.full(count, slots, dtype=np.int64), rate, shortest=4.0, longest=9.0, patience=PATIENCE, seed=3
    )


@pytest.mark.parametrize("each_step", [1, 3, 9])
def test_calls_that_came_are_done_or_gone_or_there(each_step: int) -> None:
    arrays, table = engines(), np.arange(6)
    came = done = gone = 0
    for step in range(80):
        arrays.rate[2] = 0.0 if 20 <= step < 50 else 1.0
        done += int(arrays.work().sum())
        gone += arrays.give_up()
        if step == 30:
            gone += arrays.drop(np.array([2, 3]))
        got = arrays.send(table, each_step)
        came += int(got.sum())
        arrays.enqueue(got)
        arrays.start()
        assert int(arrays.in_flight.sum()) == came - done - gone
        assert (arrays.running <= arrays.slots).all()
        assert (arrays.waiting >= 0).all()
    assert came == 80 * each_step
    assert done, "calls end"


def test_those_that_waited_longest_start_first() -> None:
    arrays = engines(count=1, slots=1)
    waited = []
    for _ in range(40):
        arrays.work()
        arrays.give_up()
        arrays.enqueue(np.array([1]))
        waited += arrays.start().taken_steps.tolist()
    # The head of a queue that is always longer than patience has waited nearly all of it, and then takes 4 to 9.
    assert min(waited[3:]) >= PATIENCE


def test_calls_go_where_least_is_held() -> None:
    arrays, table = engines(), np.arange(6)
    arrays.running[:] = [90, 90, 90, 90, 90, 0]
    got = arrays.send(table, 60)
    assert got[5] > got[:5].max()
