"""Impairments: affected engines and proxies, remaining capacity, and visibility."""

from collections.abc import Mapping
from typing import Any, get_args

import pytest

from chaos.faults.fault_registry import AnyFault
from chaos.history.history_events import ProxyRecord
from chaos.history.recorded_history import History
from chaos.measures.impairments import Impairment, ejectable, fault_of_event, impairments
from tests.chaos import history_builders

KINDS = get_args(get_args(AnyFault)[0])
ZONES = (ProxyRecord(name="p0", zone="a", demand=1.0), ProxyRecord(name="p1", zone="b", demand=1.0))


def seen(fault: Mapping[str, Any], *targets: str, **more: Any) -> History:
    began = history_builders.began(engines=history_builders.engines(4, zones=("a", "b")), proxies=ZONES)
    return history_builders.history(
        history_builders.outage(*(targets or ("e1",)), fault=fault, **more), began=began
    )


def trouble(fault: Mapping[str, Any], *targets: str, **more: Any) -> Impairment:
    (found,) = impairments(seen(fault, *targets, **more))
    return found


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_fault_has_an_impairment_kind(kind: Any) -> None:
    """Also that whatever is written down of a fault is understood again."""
    fault = kind()
    expected = fault.model_dump(mode="json", by_alias=True)
    assert fault_of_event(expected) == fault
    found = impairments(seen(expected, "e1", "p0"))
    assert [one.engine for one in found] in ([], ["e1"])
    assert all(0.0 <= one.nature.capacity_left <= 1.0 for one in found)


@pytest.mark.parametrize(
    ("fault", "left"),
    [
        ({"kind": "hang"}, 0.0),
        ({"kind": "engine_error", "share": 0.25}, 0.75),
        ({"kind": "slow", "factor": 4}, 0.25),
        ({"kind": "kv_cache_full", "factor": 2}, 0.5),
    ],
)
def test_remaining_capacity_per_fault(fault: Mapping[str, Any], left: float) -> None:
    assert trouble(fault).nature.capacity_left == pytest.approx(left)


def test_hang_and_crash_impairments_differ() -> None:
    assert trouble(history_builders.HANG).nature.is_at_standstill
    assert not trouble(history_builders.HANG).nature.unseen
    for fault in (history_builders.CRASH, {"kind": "oom_kill"}, {"kind": "freeze"}, {"kind": "black_hole"}):
        assert trouble(fault).nature.unseen, fault


@pytest.mark.parametrize(
    ("fault", "takes"),
    [
        (history_builders.CRASH, True),
        ({"kind": "rolling_restart", "drain": False}, True),
        ({"kind": "rolling_restart", "drain": True}, False),
        ({"kind": "shed"}, False),
        ({"kind": "flap", "fault": {"kind": "crash"}}, True),
    ],
)
def test_faults_that_cut_streams(fault: Mapping[str, Any], takes: bool) -> None:
    assert trouble(fault).nature.takes_streams is takes


def test_slow_engine_has_less_capacity_and_is_not_ejectable() -> None:
    found = trouble({"kind": "slow"})
    assert not found.bad
    assert ejectable([found]) == []


@pytest.mark.parametrize("fault", [{"kind": "reports_lie"}, {"kind": "agent_killed"}, {"kind": "lying_health"}])
def test_false_reports_do_not_impair_an_engine(fault: Mapping[str, Any]) -> None:
    assert impairments(seen(fault)) == ()


def test_partition_affects_proxies_of_other_zones_only() -> None:
    # e1 and p1 stand in zone b.
    found = trouble({"kind": "partition"}, "e1", "p1")
    assert found.engine == "e1"
    assert found.proxies == {"p0"}


def test_engine_that_stays_dead_is_never_healed() -> None:
    assert trouble({"kind": "oom_kill", "staysDead": True}).end_s == float("inf")
    assert trouble(history_builders.HANG, end_s=None).end_s == float("inf")


def test_unknown_fault_is_skipped() -> None:
    assert impairments(seen({"kind": "alien"})) == ()
    assert fault_of_event({"kind": "hang", "newSetting": 1}) is None
