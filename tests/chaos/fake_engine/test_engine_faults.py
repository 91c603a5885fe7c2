"""Fault values: from text and back, and what is refused."""

import json

import pytest

from chaos.fake_engine.engine_faults import (
    EngineBadHealth,
    EngineCrash,
    EngineDrain,
    EngineErrorAfterWork,
    EngineFaultError,
    EngineFlap,
    EngineGrayFailure,
    EngineHang,
    EngineHangMidStream,
    EngineKvCacheFull,
    EnginePacing,
    EngineResetMidStream,
    EngineShed,
    EngineSigterm,
    EngineSlow,
    RefuseCall,
    ServeCall,
    call_treatment,
    engine_fault_object,
    parse_engine_fault,
)


@pytest.mark.parametrize(
    "fault",
    [
        EngineBadHealth(health="slow"),
        EngineCrash(),
        EngineDrain(),
        EngineErrorAfterWork(status=502, share=0.3),
        EngineFlap(fault=EngineShed(retry_after_s=None), period_s=0.5),
        EngineGrayFailure(honest_tokens=3),
        EngineHang(health="fail"),
        EngineHangMidStream(after_tokens=0),
        EngineKvCacheFull(factor=3),
        EnginePacing(factor=1.5, burst=4),
        EngineResetMidStream(after_tokens=7),
        EngineSigterm(shutdown_timeout_s=10),
        EngineSlow(factor=2.5),
    ],
)
def test_fault_round_trips_through_json(fault) -> None:
    assert parse_engine_fault(json.dumps(engine_fault_object(fault))) == fault


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
def test_invalid_fault_is_refused_with_the_field(text: str, complaint: str) -> None:
    with pytest.raises(EngineFaultError, match=complaint):
        parse_engine_fault(text)


def test_gray_failure_serves_probes_and_refuses_work() -> None:
    gray = EngineGrayFailure(honest_tokens=2, share=0.5)
    assert call_treatment(gray, 0.0, 2) == ServeCall()
    refused = call_treatment(gray, 0.0, 3)
    assert isinstance(refused, RefuseCall)
    assert refused.status == 500
    assert call_treatment(gray, 0.9, 3) == ServeCall()
