"""The traffic store: what counts, what expires, and that no order of reports corrupts it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.route import PriorityClass
from tests.xds_server.telemetry.conftest import WINDOW, documents, policies_of
from xds_server.model.pool_traffic import NEWEST_ANSWERS, RATE_S, STALE_S, WINDOW_S, PoolTraffic
from xds_server.telemetry.attempt_outcome import AttemptOutcome
from xds_server.telemetry.pool_directory import PoolFacts, build_directory
from xds_server.telemetry.tally import SILENT_CALLS, SILENT_S
from xds_server.telemetry.traffic_store import Attempt, TrafficStore

BATCH, INTERACTIVE = PriorityClass.BATCH, PriorityClass.INTERACTIVE


def chat(book: TrafficStore) -> PoolFacts:
    return book.directory.pools["chat"]


def told(
    book: TrafficStore, outcome: AttemptOutcome = AttemptOutcome.SUCCESS, now_s: float = 0.0, **other: Any
) -> None:
    said: dict[str, Any] = {
        "first": True,
        "priority": INTERACTIVE,
        "streaming": False,
        "duration_s": 0.5,
        "first_byte_s": 0.1,
        **other,
    }
    node, weight = said.pop("node", "p1"), said.pop("weight", 1.0)
    attempt = Attempt(**{"engine": "e0", "outcome": outcome, **said})
    book.record_attempt(node, chat(book), attempt, weight=weight, now_s=now_s)


def seen(book: TrafficStore, now_s: float) -> PoolTraffic:
    return book.traffic(now_s)["chat"]


class TestWindow:
    def test_window_has_the_newest_relevant_calls(self, book):
        for outcome in (
            [AttemptOutcome.FAILURE] * 4 + [AttemptOutcome.SUCCESS] * (WINDOW - 1) + [AttemptOutcome.NEUTRAL] * 5
        ):
            told(book, outcome, 1.0)
        engine = seen(book, 1.0).engines["e0"]
        assert (engine.window_calls, engine.window_failures, engine.failures_in_a_row) == (WINDOW, 1, 0)
        assert (engine.succeeded, engine.failed, engine.neutral) == (WINDOW - 1, 4, 5)

    def test_window_expires_and_totals_do_not(self, book):
        told(book, AttemptOutcome.FAILURE, 0.0)
        told(book, AttemptOutcome.FAILURE, WINDOW_S - 1.0)
        assert seen(book, WINDOW_S - 0.5).engines["e0"].window_failures == 2
        engine = seen(book, WINDOW_S + 0.5).engines["e0"]
        assert (engine.window_calls, engine.window_failures, engine.failures_in_a_row) == (1, 1, 1)
        assert engine.failed == 2

    def test_newest_answers_count_sheds_and_expire(self, book):
        for outcome in [AttemptOutcome.SUCCESS] * 6 + [AttemptOutcome.NEUTRAL] * 3:
            told(book, outcome, 0.0, complete=outcome is not AttemptOutcome.NEUTRAL)
        engine = seen(book, 0.5).engines["e0"]
        assert (engine.newest_answers, engine.newest_spoiled) == (6, 0), "a call that proves nothing"
        for _ in range(NEWEST_ANSWERS - 1):
            told(book, AttemptOutcome.NEUTRAL, 1.0)
        engine = seen(book, 1.5).engines["e0"]
        assert (engine.newest_answers, engine.newest_spoiled) == (NEWEST_ANSWERS, NEWEST_ANSWERS - 1)
        told(book, AttemptOutcome.FAILURE, WINDOW_S)
        engine = seen(book, 1.5 + WINDOW_S).engines["e0"]
        assert (engine.newest_answers, engine.newest_spoiled) == (1, 1)

    def test_success_ends_consecutive_failures(self, book):
        for outcome in (
            AttemptOutcome.SUCCESS,
            AttemptOutcome.FAILURE,
            AttemptOutcome.NEUTRAL,
            AttemptOutcome.FAILURE,
        ):
            told(book, outcome, 1.0)
        assert seen(book, 1.0).engines["e0"].failures_in_a_row == 2
        told(book, AttemptOutcome.SUCCESS, 1.1)
        assert seen(book, 1.1).engines["e0"].failures_in_a_row == 0

    def test_window_size_follows_the_policy(self, book, tmp_path):
        for _ in range(WINDOW):
            told(book, AttemptOutcome.FAILURE, 1.0)
        shorter = documents()
        shorter[-1]["spec"]["breaker"] = {"windowCalls": 5, "minCalls": 3}
        book.set_directory(build_directory(policies_of(tmp_path, shorter), {}))
        assert seen(book, 1.0).engines["e0"].window_failures == 5

    def test_removed_engine_is_forgotten(self, book, tmp_path):
        told(book, AttemptOutcome.FAILURE, 1.0, engine="e3")
        book.record_load("p1", chat(book), {"e3": (2, 1), "e0": (1, 1)}, 1.0)
        book.set_directory(build_directory(policies_of(tmp_path, documents(engines=3)), {}))
        traffic = seen(book, 1.0)
        assert set(traffic.engines) == {"e0"}
        assert traffic.proxies["p1"].in_flight_on == {"e0": 1}


class TestRates:
    def test_rates_of_a_steady_stream(self, book):
        for step in range(400):
            told(book, now_s=10 + step * 0.01, duration_s=0.5)
        traffic = seen(book, 14.0)
        engine = traffic.engines["e0"]
        assert 95 < engine.done_per_s < 105
        assert 47 < engine.busy < 53
        assert abs(engine.service_s - 0.5) < 1e-6
        assert 95 < traffic.proxies["p1"].arrivals_per_s[INTERACTIVE] < 105

    def test_idle_engine_has_no_mean_time(self, book):
        told(book, now_s=1.0)
        engine = seen(book, 1.0 + RATE_S + 0.3).engines["e0"]
        assert (engine.done_per_s, engine.busy, engine.service_s) == (0.0, 0.0, None)

    def test_arrivals_are_split_by_class_retry_and_refusal(self, book):
        told(book, now_s=2.0, priority=BATCH)
        told(book, now_s=2.0, first=False)
        told(book, AttemptOutcome.NOT_SENT, 2.0)
        book.record_shed("p1", chat(book), BATCH, weight=1.0, now_s=2.0)
        proxy = seen(book, 2.0).proxies["p1"]
        one = proxy.retries_per_s
        assert one > 0
        assert proxy.arrivals_per_s == {INTERACTIVE: one, BATCH: 2 * one}
        assert proxy.shed_per_s == {INTERACTIVE: one, BATCH: one}
        assert seen(book, 2.0).engines["e0"].window_calls == 2

    def test_late_entries_count_at_their_end_time(self, book):
        for late_s in (30.0, 3.0, 1.5, 1.5, 0.0):
            told(book, now_s=100.0, late_s=late_s)
        proxy, engine = seen(book, 100.0).proxies["p1"], seen(book, 100.0).engines["e0"]
        assert proxy.arrivals_per_s[INTERACTIVE] == pytest.approx(3 / 1.8)  # nine whole slots, and one that begins
        assert engine.done_per_s == pytest.approx(3 / 1.8)
        assert engine.succeeded == 5
        later = seen(book, 101.0).proxies["p1"]
        assert later.arrivals_per_s[INTERACTIVE] == pytest.approx(1 / 1.8)

    def test_refused_retry_is_not_an_arrival(self, book):
        told(book, AttemptOutcome.NOT_SENT, 2.0, first=False)
        proxy = seen(book, 2.0).proxies["p1"]
        assert (proxy.arrivals_per_s, set(proxy.shed_per_s), proxy.retries_per_s) == ({}, {INTERACTIVE}, 0.0)

    def test_sampled_entries_are_weighted(self, book):
        for _ in range(3):
            told(book, now_s=2.0, weight=10.0)
        engine = seen(book, 2.0).engines["e0"]
        assert (engine.succeeded, engine.window_calls) == (30, 3)
        assert (engine.reported_successes, engine.reported_failures) == (3, 0)

    def test_evidence_is_counted_in_entries_whatever_others_sample(self, book):
        for _ in range(4):
            told(book, AttemptOutcome.FAILURE, 2.0)
        told(book, now_s=2.0, weight=100.0)
        engine = seen(book, 2.0).engines["e0"]
        assert (engine.reported_successes, engine.reported_failures) == (1, 4)


class TestArrivals:
    def test_long_requests_count_as_arrivals_at_their_start(self, book):
        for tick in range(9):
            book.record_load("p1", chat(book), {"e0": (tick * 5, 5)}, 10 + tick * 0.25)
        (rate,) = seen(book, 12.0).proxies["p1"].arrivals_per_s.values()
        assert 18 < rate < 22

    def test_cut_requests_are_not_a_burst_of_arrivals(self, book):
        for tick in range(9):
            in_flight = 48 if tick < 8 else 0
            book.record_load("p1", chat(book), {"e0": (in_flight, 0)} if in_flight else {}, 10 + tick * 0.25)
        for _ in range(48):
            told(book, AttemptOutcome.FAILURE, 12.0)
        # By the log alone they would be 24 per second; the two windows do not start at exactly the same time.
        assert sum(seen(book, 12.0).proxies["p1"].arrivals_per_s.values()) < 4

    def test_refused_requests_count_as_arrivals(self, book):
        book.record_load("p1", chat(book), {"e0": (9, 0)}, 11.0)
        book.record_load("p1", chat(book), {}, 12.0)
        told(book, AttemptOutcome.NOT_SENT, 12.0)
        proxy = seen(book, 12.0).proxies["p1"]
        assert proxy.arrivals_per_s == proxy.shed_per_s != {}

    def test_open_requests_are_split_by_the_class_mix(self, book):
        for tick in range(9):
            book.record_load("p1", chat(book), {"e0": (tick * 5, 5)}, 10 + tick * 0.25)
        for priority in (INTERACTIVE, INTERACTIVE, INTERACTIVE, BATCH):
            told(book, now_s=12.0, priority=priority)
        arrivals = seen(book, 12.0).proxies["p1"].arrivals_per_s
        assert abs(arrivals[INTERACTIVE] - 3 * arrivals[BATCH]) < 1e-6


class TestTails:
    def test_tails_of_answers_and_first_bytes(self, book):
        for n in range(1, 101):
            told(book, now_s=5.0, duration_s=n / 100)
            told(book, now_s=5.0, streaming=True, duration_s=9.0, first_byte_s=n / 1000)
        traffic = seen(book, 5.0)
        assert abs(traffic.answer.p50_s - 0.50) < 0.03
        assert abs(traffic.answer.p99_s - 0.99) < 0.05
        assert abs(traffic.first_byte.p95_s - 0.095) < 0.005
        assert 1.0 <= traffic.answer.longest_s < 1.06
        assert (traffic.answer.calls, traffic.first_byte.calls) == (100, 100)

    def test_tails_cover_successful_calls_only(self, book):
        told(book, AttemptOutcome.FAILURE, 5.0, duration_s=30.0)
        told(book, AttemptOutcome.NEUTRAL, 5.0, duration_s=30.0)
        assert seen(book, 5.0).answer is None

    def test_tails_expire_after_a_minute(self, book):
        told(book, now_s=5.0)
        told(book, AttemptOutcome.NEUTRAL, 64.0)
        assert seen(book, 64.0).answer is None


class TestLoad:
    def test_in_flight_is_the_sum_of_the_newest_reports(self, book):
        book.record_load("p1", chat(book), {"e0": (5, 9), "e1": (1, 0)}, 1.0)
        book.record_load("p2", chat(book), {"e0": (2, 1)}, 1.1)
        assert seen(book, 1.2).engines["e0"].in_flight == 7
        book.record_load("p1", chat(book), {"e0": (1, 0)}, 1.3)
        traffic = seen(book, 1.3)
        assert (traffic.engines["e0"].in_flight, traffic.engines["e1"].in_flight) == (3, 0)
        assert traffic.proxies["p1"].in_flight_on == {"e0": 1}

    def test_unknown_in_flight_is_not_zero(self, book):
        told(book, now_s=1.0)
        assert seen(book, 1.0).engines["e0"].in_flight is None

    def test_stale_load_report_is_dropped(self, book):
        book.record_load("p1", chat(book), {"e0": (5, 1)}, 1.0)
        book.record_load("p2", chat(book), {"e0": (2, 1)}, 1.0 + STALE_S)
        traffic = seen(book, 1.5 + STALE_S)
        assert traffic.engines["e0"].in_flight == 2
        assert set(traffic.proxies) == {"p2"}

    def test_in_flight_is_unknown_without_reports(self, book):
        book.record_load("p1", chat(book), {"e0": (5, 1)}, 1.0)
        told(book, now_s=1.0 + STALE_S)
        traffic = seen(book, 1.5 + STALE_S)
        assert traffic.engines["e0"].in_flight is None
        assert traffic.proxies["p1"].load_at_s is None
        assert traffic.proxies["p1"].in_flight_on == {}

    def test_proxy_without_requests_is_not_stored(self, book):
        book.record_load("p1", chat(book), {}, 1.0)
        assert book.traffic(1.0) == {}


class TestSilence:
    def report(
        self, book: TrafficStore, counts: dict[str, tuple[int, int]], until_s: float = SILENT_S
    ) -> PoolTraffic:
        for tick in range(int(until_s * 4) + 1):
            book.record_load("p1", chat(book), counts, 10 + tick * 0.25)
        return seen(book, 10 + until_s)

    def test_engine_skipped_within_its_zone_is_silent(self, book):
        traffic = self.report(book, {"e0": (1, 4), "e1": (0, 3), "e3": (0, 3)})
        silent = traffic.proxies["p1"].silent
        assert set(silent) == {"e2"}
        assert silent["e2"] >= SILENT_CALLS

    def test_engine_with_open_requests_is_not_silent(self, book):
        assert self.report(book, {"e0": (1, 4), "e2": (3, 0)}).proxies["p1"].silent == {}

    def test_engine_is_not_silent_too_early(self, book):
        assert self.report(book, {"e0": (1, 400)}, until_s=1.0).proxies["p1"].silent == {}

    def test_engine_is_not_silent_with_little_traffic(self, book):
        book.record_load("p1", chat(book), {"e0": (0, SILENT_CALLS)}, 10.0)
        assert self.report(book, {"e0": (1, 0)}).proxies["p1"].silent == {}


class TestLoss:
    def test_unreported_pool_is_absent_and_its_window_ages(self, book):
        for _ in range(5):
            told(book, AttemptOutcome.FAILURE, 1.0)
        assert book.traffic(1.5 + STALE_S) == {}
        told(book, AttemptOutcome.NEUTRAL, 10.0)
        assert seen(book, 10.0).engines["e0"].window_failures == 5
        told(book, AttemptOutcome.NEUTRAL, 1.5 + WINDOW_S)
        assert seen(book, 1.5 + WINDOW_S).engines["e0"].window_calls == 0

    def test_vanished_proxies_are_forgotten(self, book):
        for n in range(200):
            told(book, now_s=float(n), node=f"p{n}")
        book.traffic(200.0)
        assert len(book._pools["chat"].proxies) < 70

    def test_removed_pool_is_absent(self, book, tmp_path):
        told(book, now_s=1.0)
        found = [one for one in documents() if one["kind"] == "ResiliencePolicy"]
        book.set_directory(build_directory(policies_of(tmp_path, found), {}))
        assert book.traffic(1.0) == {}


class TestIdentity:
    def test_unchanged_traffic_is_the_same_object(self, book):
        told(book, now_s=1.0)
        first = book.traffic(5.5)
        assert book.traffic(5.6) is first

    def test_idle_pool_stays_the_same_object(self, book):
        book.record_load("p1", chat(book), {"e0": (1, 0)}, 1.0)
        first = seen(book, 1.0)
        book.record_load("p1", chat(book), {"e0": (1, 0)}, 1.25)
        assert seen(book, 1.3) is first
        book.record_load("p1", chat(book), {"e0": (1, 0)}, 2.5)
        assert seen(book, 2.5).heard_at_s == 2.5

    def test_other_pools_stay_the_same_objects(self, book):
        told(book, now_s=1.0)
        attempt = Attempt(
            engine="far",
            outcome=AttemptOutcome.NEUTRAL,
            first=True,
            priority=BATCH,
            streaming=False,
            duration_s=0.1,
            first_byte_s=0.1,
        )
        book.record_attempt("p1", book.directory.pools["small"], attempt, weight=1.0, now_s=1.0)
        before = book.traffic(4.0)
        told(book, AttemptOutcome.FAILURE, 4.0)
        after = book.traffic(4.0)
        assert after["chat"] is not before["chat"]
        assert after["small"] is before["small"]


ENGINES = st.sampled_from(["e0", "e1", "e2", "e3"])
NODES = st.sampled_from(["p1", "p2", "p3"])
ATTEMPT = st.tuples(
    st.just("attempt"), NODES, ENGINES, st.sampled_from(list(AttemptOutcome)[:4]), st.booleans(), st.floats(0, 100)
)
REPORT = st.tuples(
    st.just("load"),
    NODES,
    st.dictionaries(ENGINES, st.tuples(st.integers(0, 20), st.integers(0, 20))),
)
PAUSE = st.tuples(st.just("pause"), st.floats(0, 8))


@settings(max_examples=150)
@given(steps=st.lists(ATTEMPT | REPORT | PAUSE, max_size=60))
def test_traffic_invariants(policies, steps):
    book, now_s = TrafficStore(), 100.0
    book.set_directory(build_directory(policies, {}))
    newest: dict[str, tuple[float, dict[str, int]]] = {}
    totals: dict[str, int] = {}
    for step in steps:
        match step:
            case ("attempt", node, engine, outcome, first, duration_s):
                told(book, outcome, now_s, node=node, engine=engine, first=first, duration_s=duration_s)
            case ("load", node, counts):
                book.record_load(node, chat(book), counts, now_s)
                if counts or node in book._pools.get("chat", book._pool(chat(book))).proxies:
                    newest[node] = (now_s, {engine: one for engine, (one, _) in counts.items()})
            case ("pause", wait_s):
                now_s += wait_s
        traffic = book.traffic(now_s).get("chat")
        if traffic is None:
            continue
        for name, engine in traffic.engines.items():
            assert 0 <= engine.window_failures <= engine.window_calls <= WINDOW
            assert 0 <= engine.failures_in_a_row <= engine.window_failures
            assert engine.succeeded + engine.failed >= max(engine.window_calls, totals.get(name, 0))
            totals[name] = engine.succeeded + engine.failed
            assert engine.done_per_s >= 0
            assert engine.busy >= 0
            # A report may count a little longer than STALE_S, until the next sweep; never one that is older.
            held = [counts.get(name, 0) for at_s, counts in newest.values() if now_s - at_s <= STALE_S + 1.0]
            assert engine.in_flight is None or 0 <= engine.in_flight <= sum(held)
        for proxy in traffic.proxies.values():
            assert all(rate > 0 for rate in (*proxy.arrivals_per_s.values(), *proxy.shed_per_s.values()))
            assert not proxy.silent.keys() & proxy.in_flight_on.keys()


@given(
    calls=st.lists(
        st.tuples(NODES, ENGINES, st.sampled_from(list(AttemptOutcome)[:3]), st.floats(0.001, 10)), max_size=9
    ),
    seed=st.randoms(use_true_random=False),
)
def test_counts_do_not_depend_on_entry_order(policies, calls, seed):
    def heard(order: list[Any]) -> dict[str, Any]:
        book = TrafficStore()
        book.set_directory(build_directory(policies, {}))
        for node, engine, outcome, duration_s in order:
            told(book, outcome, 5.0, node=node, engine=engine, duration_s=duration_s)
        traffic = book.traffic(5.0).get("chat")
        if traffic is None:
            return {}
        return {
            name: (
                one.window_calls, one.window_failures, one.succeeded, one.failed, one.neutral,
                round(one.done_per_s, 6), round(one.busy, 6),
            )
            for name, one in traffic.engines.items()
        } | {node: dict(one.arrivals_per_s) for node, one in traffic.proxies.items()}  # fmt: skip

    shuffled = list(calls)
    seed.shuffle(shuffled)
    assert heard(calls) == heard(shuffled)
