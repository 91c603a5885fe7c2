"""What outcomes add up to."""

from chaos.history.request_outcomes import (
    OutcomeReason,
    RequestOutcome,
    outcome_summary,
    quantile,
)


def outcome(
    at_s: float,
    reason: OutcomeReason = OutcomeReason.OK,
    *,
    latency_s: float = 1.0,
    first_token_s: float | None = None,
) -> RequestOutcome:
    return RequestOutcome(
        request_id="r",
        target="a",
        streaming=first_token_s is not None,
        arrived_at_s=at_s,
        lag_s=0.0,
        status=200,
        reason=reason,
        first_token_s=first_token_s,
        latency_s=latency_s,
        tokens=1,
    )


def test_quantile_is_an_observed_value() -> None:
    values = [float(i) for i in range(1, 101)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile(values, 1.0)) == (50.0, 99.0, 100.0)
    assert quantile([3.0], 0.99) == 3.0
    assert quantile([], 0.5) is None


def test_summary_separates_good_and_all_answers() -> None:
    seen = outcome_summary(
        [
            outcome(0.0, latency_s=0.2, first_token_s=0.1),
            outcome(1.0, latency_s=0.4),
            outcome(2.0, OutcomeReason.SHED, latency_s=0.001),
            outcome(4.0, OutcomeReason.TIMEOUT, latency_s=10.0, first_token_s=9.0),
        ]
    )
    assert (seen.requests, seen.ok, seen.goodput_ratio, seen.goodput_per_s) == (4, 2, 0.5, 0.5)
    assert (seen.good_latency_p50_s, seen.good_latency_p99_s, seen.all_latency_p99_s) == (0.2, 0.4, 10.0)
    assert seen.first_token_p99_s == 0.1
    assert seen.reasons == {"ok": 2, "shed": 1, "timeout": 1}


def test_empty_summary_has_no_values() -> None:
    seen = outcome_summary([])
    assert (seen.requests, seen.goodput_ratio, seen.goodput_per_s, seen.all_latency_p99_s) == (0,) + (None,) * 3
