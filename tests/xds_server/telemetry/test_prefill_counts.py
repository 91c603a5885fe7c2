"""Requests of a decode pool by whether a prefill engine was named, in the traffic store."""

from pathlib import Path
from typing import Any

import pytest

from policies.route import PriorityClass
from tests.xds_server.telemetry.conftest import documents, policies_of
from xds_server.model.pool_traffic import PrefillUse
from xds_server.telemetry.attempt_outcome import AttemptOutcome
from xds_server.telemetry.pool_directory import build_directory
from xds_server.telemetry.traffic_store import Attempt, TrafficStore


@pytest.fixture
def staged(tmp_path: Path) -> TrafficStore:
    """Pool small prefills for pool chat."""
    pools = documents()
    for pool, stage in ((pools[0], "decode"), (pools[1], "prefill")):
        pool["spec"] |= {"stage": stage, "model": "m"}
    for route in pools[2:4]:
        route["spec"].pop("fallbacks", None)
    pools[2]["spec"]["prefill"] = {"pool": "small"}
    book = TrafficStore()
    book.set_directory(build_directory(policies_of(tmp_path, pools), {"far.example": "10.9.9.9"}))
    return book


def told(book: TrafficStore, now_s: float, *, named: bool, weight: float = 1.0, **other: Any) -> None:
    said: dict[str, Any] = {
        "engine": "e0", "outcome": AttemptOutcome.SUCCESS, "first": True, "priority": PriorityClass.INTERACTIVE,
        "streaming": True, "duration_s": 0.5, "first_byte_s": 0.1, "prefiller": named, **other,
    }  # fmt: skip
    book.record_attempt("n1", book.directory.pools["chat"], Attempt(**said), weight=weight, now_s=now_s)


def use(book: TrafficStore, now_s: float) -> PrefillUse | None:
    return book.traffic(now_s)["chat"].prefill


def test_requests_and_first_bytes_by_name(staged: TrafficStore) -> None:
    for _ in range(3):
        told(staged, 1.0, named=True, first_byte_s=0.2)
    told(staged, 1.0, named=False, first_byte_s=0.8)
    found = use(staged, 1.0)
    assert found is not None
    assert (found.named, found.local, found.named_ratio) == (3, 1, 0.75)
    assert found.named_first_byte is not None
    assert found.local_first_byte is not None
    assert found.named_first_byte.p50_s == pytest.approx(0.2, rel=0.03)
    assert found.local_first_byte.p50_s == pytest.approx(0.8, rel=0.03)


def test_sampled_entries_count_for_more(staged: TrafficStore) -> None:
    told(staged, 1.0, named=True, weight=9.0)
    told(staged, 1.0, named=False)
    found = use(staged, 1.0)
    assert found is not None
    assert found.named_ratio == 0.9


def test_retries_and_requests_that_reached_no_engine_do_not_count(staged: TrafficStore) -> None:
    told(staged, 1.0, named=True)
    told(staged, 1.0, named=False, first=False)
    told(staged, 1.0, named=False, outcome=AttemptOutcome.NOT_SENT)
    found = use(staged, 1.0)
    assert found is not None
    assert (found.named, found.local) == (1, 0)


def test_failed_and_whole_answers_have_no_first_byte(staged: TrafficStore) -> None:
    told(staged, 1.0, named=True, streaming=False)
    told(staged, 1.0, named=True, outcome=AttemptOutcome.FAILURE)
    found = use(staged, 1.0)
    assert found is not None
    assert (found.named, found.named_first_byte) == (2, None)


def test_a_minute_counts(staged: TrafficStore) -> None:
    told(staged, 1.0, named=True)
    told(staged, 45.0, named=False)
    assert (found := use(staged, 46.0)) is not None
    assert found.named_ratio == 0.5
    told(staged, 70.0, named=False)
    assert (found := use(staged, 72.0)) is not None
    assert (found.named, found.local) == (0, 2)


def test_pools_without_prefill_count_nothing(book: TrafficStore) -> None:
    told(book, 1.0, named=True)
    assert use(book, 1.0) is None
    told(book, 1.1, named=False)


def test_counts_end_with_the_prefill_of_the_route(staged: TrafficStore, tmp_path: Path) -> None:
    told(staged, 1.0, named=True)
    staged.set_directory(build_directory(policies_of(tmp_path, documents()), {}))
    told(staged, 3.0, named=False)
    assert use(staged, 3.0) is None


def test_short_prompts_count_as_local_and_are_not_compared(staged: TrafficStore) -> None:
    told(staged, 1.0, named=False, prefillable=False)
    found = use(staged, 1.0)
    assert found is not None
    assert (found.local, found.local_first_byte) == (1, None)
