"""Time between tokens of pools, from what agents report of their engines."""

from pathlib import Path
from typing import Any

import pytest

from engine.report import TokenGaps
from tests.xds_server.telemetry.conftest import documents, policies_of
from xds_server.model.fleet import EngineId
from xds_server.telemetry import call_latency
from xds_server.telemetry.pool_directory import build_directory
from xds_server.telemetry.token_gap_counts import TokenGapCounts
from xds_server.telemetry.traffic_store import TrafficStore

OBJECTIVES = {"betweenTokens": {"p95": "75ms", "p99": "100ms"}, "total": {"p99": "5s"}}
ENGINE = EngineId(pool="chat", engine="e0")


def gaps(*counts: int, sum_s: float = 0.0) -> TokenGaps:
    """Cumulative counts up to 50 ms, 100 ms, and all."""
    return TokenGaps(bounds_s=(0.05, 0.1), counts=counts, sum_s=sum_s)


def store(folder: Path, objectives: dict[str, Any]) -> TrafficStore:
    found = documents()
    for one in found:
        if one["metadata"]["name"] == "chat":
            one["spec"]["objectives"] = objectives
    book = TrafficStore()
    book.set_directory(build_directory(policies_of(folder, found), {}))
    return book


def judged(book: TrafficStore) -> dict[str, tuple[float, float]]:
    """Good and all gaps or calls of the pool by objective."""
    totals = call_latency.objective_totals(book.latency(), book.objectives_of_pools())
    return {name: (one.good, one.calls) for (_, _, name), one in totals.items()}


def buckets(book: TrafficStore) -> dict[str, float]:
    (family,) = book.token_gaps.families()
    return {sample.labels.get("le", sample.name[-3:]): sample.value for sample in family.samples}


def test_gaps_since_the_last_histogram_are_judged(tmp_path: Path) -> None:
    book = store(tmp_path, OBJECTIVES)
    book.record_token_gaps(ENGINE, "b", gaps(1000, 1000, 1000, sum_s=9.0))
    assert judged(book) == {}, "the first has gaps from before this server"
    book.record_token_gaps(ENGINE, "b", gaps(1080, 1090, 1100, sum_s=15.0))
    assert judged(book) == {
        "between-tokens-p95": (85, 100),  # 80, and half of those between the bounds
        "between-tokens-p99": (90, 100),
        "total-p99": (0, 0),
    }
    found = buckets(book)
    assert (found["0.05"], found["0.075"], found["0.1"], found["80.0"], found["+Inf"]) == (80, 85, 90, 90, 100)
    assert found["sum"] == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("boot", "after"), [("new", gaps(1010, 1010, 1010)), ("b", gaps(10, 10, 10))], ids=["boot", "falls"]
)
def test_restarted_engine_counts_from_its_first_histogram(tmp_path: Path, boot: str, after: TokenGaps) -> None:
    book = store(tmp_path, OBJECTIVES)
    book.record_token_gaps(ENGINE, "b", gaps(1000, 1000, 1000))
    book.record_token_gaps(ENGINE, boot, after)
    assert judged(book) == {}
    more = TokenGaps(bounds_s=after.bounds_s, counts=tuple(one + 5 for one in after.counts), sum_s=0.0)
    book.record_token_gaps(ENGINE, boot, more)
    assert judged(book)["between-tokens-p99"] == (5, 5)


def test_other_bounds_count_from_their_first_histogram(tmp_path: Path) -> None:
    book = store(tmp_path, OBJECTIVES)
    book.record_token_gaps(ENGINE, "b", gaps(1, 1, 1))
    book.record_token_gaps(ENGINE, "b", TokenGaps(bounds_s=(0.2,), counts=(9, 9), sum_s=1.0))
    assert judged(book) == {}


def test_unknown_and_removed_engines_are_not_kept(tmp_path: Path) -> None:
    book = store(tmp_path, OBJECTIVES)
    book.record_token_gaps(EngineId(pool="chat", engine="nobody"), "b", gaps(1, 1, 1))
    book.record_token_gaps(EngineId(pool="none", engine="e0"), "b", gaps(1, 1, 1))
    counts = TokenGapCounts()
    for count in (1, 2):
        counts.grown(ENGINE, "b", gaps(count, count, count))
    assert [sample for family in counts.families() for sample in family.samples]
    counts.keep({"chat": {"e1"}})
    assert counts.grown(ENGINE, "b", gaps(3, 3, 3)) is None
    counts.keep({})
    assert not [sample for family in counts.families() for sample in family.samples]


def test_pool_without_objectives_has_a_histogram(tmp_path: Path) -> None:
    book = store(tmp_path, {})
    for count in (1, 3):
        book.record_token_gaps(ENGINE, "b", gaps(count, count, count))
    assert judged(book) == {}
    assert buckets(book)["+Inf"] == 2
    assert book.traffic(1.0) == {}, "agents alone are not traffic"
