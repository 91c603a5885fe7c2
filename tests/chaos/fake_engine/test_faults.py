"""Fault values: from text and back, and what is refused."""

import json

import pytest

from chaos.fake_engine.faults import (
    BadHealth,
    Crash,
    Drain,
    ErrorAfterWork,
    FaultError,
    Flap,
    GrayFailure,
    Hang,
    HangMidStream,
    KvCacheFull,
    Pacing,
    Refuse,
    ResetMidStream,
    Serve,
    Shed,
    Sigterm,
    Slow,
    fault_object,
    parse_fault,
    treatment,
)


@pytest.mark.parametrize(
    "fault",
    [
        BadHealth(health="slow"),
        Crash(),
        Drain(),
        ErrorAfterWork(status=502, share=0.3),
        Flap(fault=Shed(retry_after_s=None), period_s=0.5),
        GrayFailure(honest_tokens=3),
        Hang(health="fail"),
        HangMidStream(after_tokens=0),
        KvCacheFull(factor=3),
        Pacing(factor=1.5, burst=4),
        ResetMidStream(after_tokens=7),
        Sigterm(shutdown_timeout_s=10),
        Slow(factor=2.5),
    ],
)
def test_a_fault_survives_its_own_text(fault) -> None:
    assert parse_fault(json.dumps(fault_object(fault))) == fault


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "Invalid JSON"),
        ("{}", "kind"),
        ('{"kind": "explode"}', "explode"),
        ('{"kind": "slow", "factr": 2}', "factr"),
        ('{"kind": "slow", "factor": 0}', "greater than 0"),
        ('{"kind": "shed", "share": 1.5}', "less than or equal to 1"),
        ('{"kind": "flap"}', "fault"),
        ('{"kind": "flap", "fault": {"kind": "flap"}}', "flap"),
    ],
)
def test_text_that_is_no_fault_is_refused_with_the_field(text: str, complaint: str) -> None:
    with pytest.raises(FaultError, match=complaint):
        parse_fault(text)


def test_a_gray_failure_serves_what_probes_ask_and_refuses_work() -> None:
    gray = GrayFailure(honest_tokens=2, share=0.5)
    assert treatment(gray, 0.0, 2) == Serve()
    refused = treatment(gray, 0.0, 3)
    assert isinstance(refused, Refuse)
    assert refused.status == 500
    assert treatment(gray, 0.9, 3) == Serve()
