"""Calls within and beyond the objectives of a route, from access logs."""

from pathlib import Path
from typing import Any

import pytest

from tests.xds_server.telemetry.conftest import documents, policies_of
from tests.xds_server.telemetry.test_call_latency import record
from xds_server.telemetry import call_latency
from xds_server.telemetry.pool_directory import build_directory
from xds_server.telemetry.traffic_store import TrafficStore

ALL = {"goodPercent": 99, "firstToken": {"p95": "1s", "p99": "2s"}, "total": {"p95": "3s", "p99": "5s"}}


def with_objectives(folder: Path, objectives: dict[str, Any] | None, *, hedged: bool = False) -> Any:
    found = documents(hedged=hedged)
    for one in found:
        if one["metadata"]["name"] == "talk" and objectives is not None:
            one["spec"]["objectives"] = objectives
    return build_directory(policies_of(folder, found), {})


@pytest.fixture
def promised(tmp_path: Path) -> TrafficStore:
    book = TrafficStore()
    book.set_directory(with_objectives(tmp_path, ALL))
    return book


def counts(book: TrafficStore) -> dict[str, tuple[float, float]]:
    """Good and all calls by objective."""
    found: dict[str, dict[str, float]] = {}
    for family in call_latency.families(book.latency(), book.objectives_of_pools()):
        for sample in family.samples:
            if "objective" in sample.labels:
                assert sample.labels["route"] == "talk"
                found.setdefault(sample.labels["objective"], {})[family.name] = sample.value
    return {
        name: (one["switchgear_objective_good_calls"], one["switchgear_objective_calls"])
        for name, one in found.items()
    }


def test_answer_is_judged_by_each_objective(promised: TrafficStore) -> None:
    record(promised, duration_s=4.0, first_byte_s=1.5, weight=2)
    assert counts(promised) == {
        "good": (2, 2),
        "first-token-p95": (0, 2),
        "first-token-p99": (2, 2),
        "total-p95": (0, 2),
        "total-p99": (2, 2),
    }


def test_limit_itself_is_within_the_objective(promised: TrafficStore) -> None:
    record(promised, duration_s=3.0, first_byte_s=1.0)
    assert set(counts(promised).values()) == {(1, 1)}


def test_answer_without_streaming_has_no_first_token(promised: TrafficStore) -> None:
    record(promised, route="talk/non-streaming", duration_s=2.0)
    assert counts(promised)["first-token-p99"] == (0, 0)
    assert counts(promised)["total-p99"] == (1, 1)


@pytest.mark.parametrize(
    ("said", "judged"),
    [
        ({"code": 500, "first_byte_s": 0}, 1),
        ({"code": 503}, 1),  # the engine had no room
        ({"code": 404}, 0),  # the caller's mistake
        ({"code": 0, "first_byte_s": 0}, 0),  # the caller left
    ],
)
def test_requests_without_an_answer(promised: TrafficStore, said: dict[str, Any], judged: int) -> None:
    record(promised, **said)
    assert counts(promised)["good"] == (0, judged)
    assert counts(promised)["total-p99"] == (0, 0), "latency is that of answers"


def test_retried_request_is_one_good_request_and_late_with_both_tries(promised: TrafficStore) -> None:
    record(promised, code=500, duration_s=3.0, first_byte_s=0)
    record(promised, attempt="2", began_s=103.5, port=8001, duration_s=2.0)
    assert counts(promised)["good"] == (1, 1)
    assert counts(promised)["total-p99"] == (0, 1), "5.5 s for its caller"


def test_failed_retry_is_one_bad_request(promised: TrafficStore) -> None:
    record(promised, code=500, first_byte_s=0)
    record(promised, code=500, first_byte_s=0, attempt="2", began_s=103.0)
    assert counts(promised)["good"] == (0, 1)


def test_refused_and_timed_out_requests_are_bad(promised: TrafficStore) -> None:
    facts = promised.directory.pools["chat"]
    priority = promised.directory.routes["talk"].priority
    promised.record_shed("p1", facts, priority, route="talk", weight=3, now_s=1000.0)
    assert counts(promised)["good"] == (0, 3)
    record(promised, code=0, first_byte_s=0)
    promised.record_failure(facts, "e0", node="p1", route="talk", weight=1, now_s=1000.0)
    assert counts(promised)["good"] == (0, 4)


@pytest.mark.parametrize("loser_first", [True, False])
def test_hedged_request_is_one_good_request(tmp_path: Path, loser_first: bool) -> None:
    book = TrafficStore()
    book.set_directory(with_objectives(tmp_path, ALL, hedged=True))
    loser = {"code": 0, "first_byte_s": 0}
    winner = {"attempt": "2", "began_s": 101.0, "port": 8001}
    for said in (loser, winner) if loser_first else (winner, loser):
        record(book, **said)
    assert counts(book)["good"] == (1, 1)


def test_route_without_objectives_counts_nothing(book: TrafficStore) -> None:
    record(book)
    assert counts(book) == {}


def test_changed_objectives_start_at_zero_and_keep_the_histograms(promised: TrafficStore, tmp_path: Path) -> None:
    record(promised)
    promised.set_directory(with_objectives(tmp_path, ALL))
    assert counts(promised)["good"] == (1, 1), "unchanged"
    promised.set_directory(with_objectives(tmp_path, {"total": {"p99": "1s"}}))
    assert counts(promised) == {"total-p99": (0, 0)}
    promised.set_directory(with_objectives(tmp_path, None))
    assert counts(promised) == {}
    assert promised.latency()["chat"]["talk"].durations["success"].sum_s == 2.0


def test_pool_counts_the_calls_of_all_its_routes(tmp_path: Path) -> None:
    found = documents()
    for one in found:
        if one["metadata"]["name"] == "chat":
            one["spec"]["objectives"] = ALL
    book = TrafficStore()
    book.set_directory(build_directory(policies_of(tmp_path, found), {}))
    record(book, duration_s=4.0, first_byte_s=1.5)
    record(book, route="night/non-streaming", duration_s=1.0)
    record(book, route="night/streaming", code=500, first_byte_s=0)
    family = next(
        one
        for one in call_latency.families(book.latency(), book.objectives_of_pools())
        if one.name == "switchgear_objective_calls"
    )
    assert {sample.labels["pool"] for sample in family.samples} == {"chat"}
    assert {sample.labels["route"] for sample in family.samples} == {""}
    assert pool_counts(book) == {
        "good": (2, 3),
        "first-token-p95": (0, 1),
        "first-token-p99": (1, 1),
        "total-p95": (1, 2),
        "total-p99": (2, 2),
    }


def test_pools_counts_survive_other_edits_and_go_with_their_objectives(tmp_path: Path) -> None:
    found = documents()
    chat = next(one for one in found if one["metadata"]["name"] == "chat")
    chat["spec"]["objectives"] = {"goodPercent": 99}
    book = TrafficStore()
    book.set_directory(build_directory(policies_of(tmp_path, found), {}))
    record(book)
    chat["spec"]["serviceTime"] = "7s"
    book.set_directory(build_directory(policies_of(tmp_path, found), {}))
    assert pool_counts(book) == {"good": (1, 1)}
    del chat["spec"]["objectives"]
    book.set_directory(build_directory(policies_of(tmp_path, found), {}))
    assert pool_counts(book) == {}


def pool_counts(book: TrafficStore) -> dict[str, tuple[float, float]]:
    """Good and all calls by objective of the pool ``chat``."""
    found = book.objectives_of_pools().get("chat")
    return {} if found is None else {name: (one.good, one.calls) for name, one in found.counts.items()}


class Heard:
    """A canary that keeps what it hears about objectives."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        self.answers: list[tuple[str, str, float, float]] = []

    def on_call_ended(self, node: str, **_: Any) -> None:
        pass

    def on_request_shed(self, node: str, weight: float) -> None:
        pass

    def on_request(self, node: str, route: str) -> None:
        self.requests.append((node, route))

    def on_answer(self, node: str, route: str, duration_s: float, first_byte_s: float) -> None:
        self.answers.append((node, route, duration_s, first_byte_s))

    def is_other_engine(self, *_: str) -> bool:
        return False


@pytest.mark.parametrize("objectives", [ALL, None])
def test_canary_hears_what_objectives_count(tmp_path: Path, objectives: dict[str, Any] | None) -> None:
    book = TrafficStore()
    book.set_directory(with_objectives(tmp_path, objectives))
    book.listener = heard = Heard()
    record(book, duration_s=4.0, first_byte_s=1.5)
    record(book, code=500, first_byte_s=0)
    record(book, code=404)
    nodes = {node for node, _ in heard.requests}
    assert [route for _, route in heard.requests] == ["talk", "talk"]
    assert heard.answers == [(next(iter(nodes)), "talk", 4.0, 1.5)]
