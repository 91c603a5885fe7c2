"""The table of XIDs follows its own rules, and the latch is bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.gpu.gpu_policy import GpuAction
from engine.gpu.xid import XIDS, xid_rule
from engine.gpu.xid_events import XidEvent, XidLatch


@pytest.mark.parametrize("rule", XIDS.values(), ids=lambda rule: str(rule.code))
def test_the_action_follows_from_nvidias_bucket(rule) -> None:
    allowed = {
        "IGNORE": {GpuAction.WATCH},
        "RESTART_APP": {GpuAction.DEGRADE, GpuAction.DRAIN},
        "RESET_GPU": {GpuAction.DRAIN, GpuAction.EJECT},
        "RESTART_BM": {GpuAction.EJECT},
        "RESTART_VM": {GpuAction.DRAIN, GpuAction.EJECT},
    }
    if rule.bucket in allowed:
        assert rule.action in allowed[rule.bucket]


def test_an_override_changes_the_action_and_nothing_else() -> None:
    rule = xid_rule(94, {94: GpuAction.EJECT})
    assert (rule.action, rule.meaning, rule.bucket) == (GpuAction.EJECT, XIDS[94].meaning, XIDS[94].bucket)
    assert xid_rule(94, {95: GpuAction.NONE}) == XIDS[94]


EVENTS = st.lists(st.tuples(st.integers(0, 3) | st.none(), st.integers(1, 200)), max_size=60)


@given(EVENTS, st.integers(1, 8))
def test_the_latch_is_bounded_counts_what_it_drops_and_keeps_the_newest(events, capacity: int) -> None:
    latch = XidLatch(capacity=capacity)
    for at, (rank, code) in enumerate(events):
        latch.record(XidEvent(rank=rank, code=code, at_s=float(at)))
        assert (latch.records()[-1].rank, latch.records()[-1].code) == (rank, code)
    held = latch.records()
    assert len(held) <= capacity
    assert [each.last_s for each in held] == sorted(each.last_s for each in held)
    if len(set(events)) <= capacity:
        assert latch.dropped == 0
        assert sum(each.count for each in held) == len(events)


def test_forgetting_takes_only_what_was_chosen() -> None:
    latch = XidLatch()
    for code in (13, 31, 79):
        latch.record(XidEvent(rank=0, code=code, at_s=0.0))
    assert latch.forget(lambda record: record.code < 40) == 2
    assert [record.code for record in latch.records()] == [79]
