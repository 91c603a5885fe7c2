"""The outcome of an attempt: every row of the module's table, as Envoy 1.40 writes it."""

import pytest

from xds_server.telemetry.attempt_outcome import AttemptOutcome, attempt_outcome, request_outcome

COUNTED = (500, 502, 504)
UF, UC, UPE = "upstream_connection_failure", "upstream_connection_termination", "upstream_protocol_error"
UT, SI, UO, UH = "upstream_request_timeout", "stream_idle_timeout", "upstream_overflow", "no_healthy_upstream"


@pytest.mark.parametrize(
    ("what", "code", "flags", "complete", "outcome"),
    [
        ("answered", 200, (), True, AttemptOutcome.SUCCESS),
        ("created", 201, (), True, AttemptOutcome.SUCCESS),
        ("500 after the work", 500, (), True, AttemptOutcome.FAILURE),
        ("500 whose body broke off", 500, (UPE,), False, AttemptOutcome.FAILURE),
        ("shed by the engine", 503, (), True, AttemptOutcome.NEUTRAL),
        ("asked to slow down", 429, (), True, AttemptOutcome.NEUTRAL),
        ("caller's mistake", 404, (), True, AttemptOutcome.NEUTRAL),
        ("not implemented", 501, (), True, AttemptOutcome.NEUTRAL),
        ("connection refused", 0, (UF,), False, AttemptOutcome.FAILURE),
        ("reset before headers", 0, (UC,), False, AttemptOutcome.FAILURE),
        ("rubbish", 0, (UPE,), False, AttemptOutcome.FAILURE),
        ("reset in mid-stream", 200, (UPE,), False, AttemptOutcome.FAILURE),
        ("per_try_timeout", 0, (UT,), False, AttemptOutcome.FAILURE),
        ("per_try_idle_timeout", 0, (SI,), False, AttemptOutcome.FAILURE),
        ("silent stream", 200, (SI,), False, AttemptOutcome.FAILURE),
        ("caller left before headers", 0, (), False, AttemptOutcome.NEUTRAL),
        ("caller left a stream", 200, (), False, AttemptOutcome.NEUTRAL),
        ("full ceiling", 0, (UO,), False, AttemptOutcome.NOT_SENT),
        ("retries suppressed on an answer", 200, (UO,), True, AttemptOutcome.SUCCESS),
        ("a flag of a newer Envoy", 0, ("somebody_elses_flag",), False, AttemptOutcome.NEUTRAL),
    ],
)
def test_attempt_outcomes(what, code, flags, complete, outcome):
    got = attempt_outcome(code, frozenset(flags), complete=complete, count_statuses=COUNTED, hedged=False)
    assert got is outcome, what


def test_counted_statuses_follow_the_policy():
    def outcome(*statuses: int) -> AttemptOutcome:
        return attempt_outcome(503, frozenset(), complete=True, count_statuses=statuses, hedged=False)

    assert (outcome(503), outcome()) == (AttemptOutcome.FAILURE, AttemptOutcome.NEUTRAL)


@pytest.mark.parametrize(
    ("code", "complete", "outcome"), [(0, False, AttemptOutcome.NEUTRAL), (200, True, AttemptOutcome.SUCCESS)]
)
def test_hedge_is_not_a_failure_of_the_first_attempt(code, complete, outcome):
    assert attempt_outcome(code, {UT}, complete=complete, count_statuses=COUNTED, hedged=True) is outcome


def test_a_hedged_route_still_sees_real_failures():
    assert attempt_outcome(0, {UF}, complete=False, count_statuses=COUNTED, hedged=True) is AttemptOutcome.FAILURE


@pytest.mark.parametrize(
    ("what", "flags", "details", "attempt", "outcome"),
    [
        ("maintenance", (UO,), "maintenance_mode", 0, AttemptOutcome.NOT_SENT),
        ("share shed by the endpoints", (), "unconditional_drop_overload", 0, AttemptOutcome.NOT_SENT),
        ("answered by the route", (), "direct_response", 0, AttemptOutcome.NOT_SENT),
        ("no engine", (UH,), "no_healthy_upstream", 1, AttemptOutcome.NOT_SENT),
        ("no engine for the second try", (UH,), "no_healthy_upstream", 2, AttemptOutcome.UNDETERMINED),
        ("no such pool", ("no_cluster_found",), "cluster_not_found", 0, AttemptOutcome.UNDETERMINED),
        ("authorization lost", ("unauthorized_details",), "ext_authz_error", 0, AttemptOutcome.UNDETERMINED),
        ("route timeout", (UT,), "response_timeout", 1, AttemptOutcome.FAILURE),
        ("route timeout after several tries", (UT,), "response_timeout", 3, AttemptOutcome.UNDETERMINED),
        ("silence the route's idle limit ended", (SI,), "stream_idle_timeout", 2, AttemptOutcome.FAILURE),
        ("a try's limit, logged by the try", (UT,), "upstream_per_try_timeout", 1, AttemptOutcome.UNDETERMINED),
        ("the same", (UT,), "upstream_per_try_idle_timeout", 1, AttemptOutcome.UNDETERMINED),
    ],
)
def test_listener_entry_refines_the_outcome(what, flags, details, attempt, outcome):
    assert request_outcome(frozenset(flags), details, attempt) is outcome, what
