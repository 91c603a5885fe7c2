"""One attempt's outcome: every row of the table in ``outcomes``, as Envoy 1.40 was seen to write it."""

import pytest

from xds_server.sources.telemetry.outcomes import Outcome, of_attempt, of_request

COUNTED = (500, 502, 504)
UF, UC, UPE = "upstream_connection_failure", "upstream_connection_termination", "upstream_protocol_error"
UT, SI, UO, UH = "upstream_request_timeout", "stream_idle_timeout", "upstream_overflow", "no_healthy_upstream"


@pytest.mark.parametrize(
    ("what", "code", "flags", "complete", "outcome"),
    [
        ("answered", 200, (), True, Outcome.SUCCESS),
        ("created", 201, (), True, Outcome.SUCCESS),
        ("500 after the work", 500, (), True, Outcome.FAILURE),
        ("500 whose body broke off", 500, (UPE,), False, Outcome.FAILURE),
        ("shed by the engine", 503, (), True, Outcome.NEUTRAL),
        ("told to slow down", 429, (), True, Outcome.NEUTRAL),
        ("caller's mistake", 404, (), True, Outcome.NEUTRAL),
        ("not implemented", 501, (), True, Outcome.NEUTRAL),
        ("connection refused", 0, (UF,), False, Outcome.FAILURE),
        ("reset before headers", 0, (UC,), False, Outcome.FAILURE),
        ("rubbish", 0, (UPE,), False, Outcome.FAILURE),
        ("reset in mid-stream", 200, (UPE,), False, Outcome.FAILURE),
        ("per_try_timeout", 0, (UT,), False, Outcome.FAILURE),
        ("per_try_idle_timeout", 0, (SI,), False, Outcome.FAILURE),
        ("silent stream", 200, (SI,), False, Outcome.FAILURE),
        ("caller left before headers", 0, (), False, Outcome.NEUTRAL),
        ("caller left a stream", 200, (), False, Outcome.NEUTRAL),
        ("full ceiling", 0, (UO,), False, Outcome.NOT_SENT),
        ("retries suppressed on an answer", 200, (UO,), True, Outcome.SUCCESS),
        ("a flag of a newer Envoy", 0, ("somebody_elses_flag",), False, Outcome.NEUTRAL),
    ],
)
def test_every_way_an_attempt_ends(what, code, flags, complete, outcome):
    got = of_attempt(code, frozenset(flags), complete=complete, count_statuses=COUNTED, hedged=False)
    assert got is outcome, what


def test_the_policy_says_which_statuses_count():
    def outcome(*statuses: int) -> Outcome:
        return of_attempt(503, frozenset(), complete=True, count_statuses=statuses, hedged=False)

    assert (outcome(503), outcome()) == (Outcome.FAILURE, Outcome.NEUTRAL)


@pytest.mark.parametrize(
    ("code", "complete", "outcome"), [(0, False, Outcome.NEUTRAL), (200, True, Outcome.SUCCESS)]
)
def test_a_hedge_is_no_failure_of_the_first_attempt(code, complete, outcome):
    assert of_attempt(code, {UT}, complete=complete, count_statuses=COUNTED, hedged=True) is outcome


def test_a_hedged_route_still_sees_real_failures():
    assert of_attempt(0, {UF}, complete=False, count_statuses=COUNTED, hedged=True) is Outcome.FAILURE


@pytest.mark.parametrize(
    ("what", "flags", "details", "attempt", "outcome"),
    [
        ("maintenance", (UO,), "maintenance_mode", 0, Outcome.NOT_SENT),
        ("share shed by the endpoints", (), "unconditional_drop_overload", 0, Outcome.NOT_SENT),
        ("answered by the route", (), "direct_response", 0, Outcome.NOT_SENT),
        ("no engine", (UH,), "no_healthy_upstream", 1, Outcome.NOT_SENT),
        ("no engine for the second try", (UH,), "no_healthy_upstream", 2, Outcome.UNTOLD),
        ("no such pool", ("no_cluster_found",), "cluster_not_found", 0, Outcome.UNTOLD),
        ("route timeout", (UT,), "response_timeout", 1, Outcome.FAILURE),
        ("route timeout after several tries", (UT,), "response_timeout", 3, Outcome.UNTOLD),
        ("silence the route's idle limit ended", (SI,), "stream_idle_timeout", 2, Outcome.FAILURE),
        ("a try's limit, told by the try", (UT,), "upstream_per_try_timeout", 1, Outcome.UNTOLD),
        ("the same", (UT,), "upstream_per_try_idle_timeout", 1, Outcome.UNTOLD),
    ],
)
def test_what_a_listener_adds(what, flags, details, attempt, outcome):
    assert of_request(frozenset(flags), details, attempt) is outcome, what
