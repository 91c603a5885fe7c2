"""What an agent writes is what the control plane reads; what a liar writes does no harm."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.proto import engine_report_pb2 as pb
from engine.report import (
    CanaryResults,
    Doubt,
    DrainRequest,
    EngineReport,
    Evidence,
    GpuSummary,
    GpuVitals,
    Quantiles,
    ReportSource,
    TokenGaps,
    TokenWork,
    Verdict,
)
from engine.report_wire import (
    MAX_REPORT_BYTES,
    ReportDropReason,
    ReportError,
    decode,
    decode_totals,
    encode,
)

SAYS = {"schema_version": 1, "boot_id": "b", "sequence": 1, "verdict": pb.READY}

FULL = EngineReport(
    pool="p",
    engine="e",
    verdict=Verdict.HUNG,
    evidence="no token for 1.2 s with 3 requests in flight",
    observed_at_s=7.0,
    sequence=12,
    boot_id="b1",
    requests_in_flight=3,
    requests_waiting=0,
    kv_cache_usage_ratio=0.5,
    tokens_per_s=0.0,
    doubt=Doubt.SILENT,
    source=ReportSource.AGENT,
    reasons=(
        Evidence(
            reading="tokens",
            sentence="no token for 1.2 s with 3 requests in flight",
            threshold="stallAfter 1s",
            age_s=1.2,
        ),
        Evidence(reading="load", sentence="3 in flight"),
    ),
    slots=8,
    time_to_first_token=Quantiles(p50_s=0.1, p99_s=0.5),
    time_per_output_token=Quantiles(p50_s=0.02, p99_s=0.03),
    model="m",
    revision="vllm 0.11.0",
    gpu=GpuSummary(
        action="degrade",
        statement="1 GPU",
        gpus=(
            GpuVitals(rank=0, uuid="GPU-1", temperature_c=-3, power_w=70.5, throttled=("hot",), xids=(79, 13)),
            GpuVitals(rank=1, memory_total_bytes=80 << 30),
        ),
    ),
    drain=DrainRequest(deadline_in_s=30.0),
    canary=CanaryResults(in_row=3, at_s=6.5, took_s=0.25),
    ranks=("0", "1"),
    hung_ranks=("1",),
    adapters=("chat", "sql"),
)


def read(data: bytes) -> EngineReport:
    return decode(data, pool="p", engine="e", received_at_s=7.0)


def test_report_round_trips_on_the_wire() -> None:
    assert read(encode(FULL)) == FULL


def test_unknown_values_stay_unknown() -> None:
    report = EngineReport(
        pool="",
        engine="",
        verdict=Verdict.STARTING,
        evidence="no token yet",
        observed_at_s=0.0,
        sequence=1,
        boot_id="b",
        drain=DrainRequest(),
    )
    known = read(encode(report))
    assert (known.requests_in_flight, known.slots, known.gpu, known.time_to_first_token) == (None,) * 4
    assert known.adapters is None
    assert read(encode(dataclasses.replace(report, adapters=()))).adapters == ()
    assert (known.evidence, known.drain, known.doubt) == ("no token yet", DrainRequest(), None)


@pytest.mark.parametrize("verdict", list(Verdict))
def test_every_verdict_has_a_number(verdict: Verdict) -> None:
    assert read(encode(dataclasses.replace(FULL, verdict=verdict))).verdict is verdict


def test_new_verdicts_reach_older_readers_as_known_ones() -> None:
    sent = pb.EngineReport.FromString(encode(dataclasses.replace(FULL, verdict=Verdict.MISCONFIGURED)))
    assert sent.verdict == pb.DEGRADED
    paused = pb.EngineReport.FromString(encode(dataclasses.replace(FULL, verdict=Verdict.PAUSED)))
    assert paused.verdict == pb.HUNG
    sent.exact_verdict = 99  # type: ignore[assignment] # of a newer agent
    assert read(sent.SerializeToString()).verdict is Verdict.DEGRADED


@pytest.mark.parametrize(
    ("lie", "flaw"),
    [
        ({"schema_version": 0}, ReportDropReason.INCOMPLETE),
        ({"boot_id": ""}, ReportDropReason.INCOMPLETE),
        ({"sequence": 0}, ReportDropReason.INCOMPLETE),
        ({"verdict": pb.VERDICT_UNSPECIFIED}, ReportDropReason.INCOMPLETE),
        ({"verdict": 99}, ReportDropReason.VERDICT),
        ({"model": "x" * MAX_REPORT_BYTES}, ReportDropReason.SIZE),
    ],
)
def test_a_report_that_says_too_little_is_dropped(lie: dict[str, object], flaw: ReportDropReason) -> None:
    with pytest.raises(ReportError) as caught:
        read(pb.EngineReport(**{**SAYS, **lie}).SerializeToString())
    assert caught.value.flaw is flaw


@pytest.mark.parametrize(
    "lie",
    [
        {"kv_cache_usage_ratio": math.nan},
        {"kv_cache_usage_ratio": -0.1},
        {"kv_cache_usage_ratio": 1.5},
        {"tokens_per_s": math.inf},
        {"tokens_per_s": -1.0},
        {"requests_in_flight": 4_000_000_000},
        {"slots": 0},
        {"time_to_first_token": pb.Quantiles(p50_s=math.nan, p99_s=1.0)},
        {"time_to_first_token": pb.Quantiles(p50_s=2.0, p99_s=1.0)},
        {"time_per_output_token": pb.Quantiles(p50_s=0.1, p99_s=1e300)},
        {"doubt": 77},
    ],
)
def test_a_number_that_cannot_be_is_one_that_is_not_known(lie: dict[str, object]) -> None:
    report = read(pb.EngineReport(**{**SAYS, **lie}).SerializeToString())
    assert all(getattr(report, name) is None for name in lie)
    assert report.verdict is Verdict.READY


def test_texts_are_cut_and_move_no_cursor() -> None:
    lie = pb.EngineReport(
        **SAYS,
        evidence=[pb.Evidence(sentence="\x1b[2J" + "x" * 1000)] * 20,
        gpu=pb.GpuGroup(action=55, gpus=[pb.Gpu(xids=range(50), throttled=["\n"] * 50)] * 70),
    )
    report = read(lie.SerializeToString())
    assert report.evidence.startswith(" [2Jxxx")
    assert len(report.evidence) == 500
    assert len(report.reasons) == 16
    assert report.gpu is not None
    assert (report.gpu.action, len(report.gpu.gpus)) == ("", 64)
    assert (len(report.gpu.gpus[0].xids), report.gpu.gpus[0].throttled) == (32, (" ",) * 32)


def test_report_of_a_later_schema_version_is_forward_compatible() -> None:
    later = pb.EngineReport(**{**SAYS, "schema_version": 9}).SerializeToString()
    assert read(later + b"\xfa\x7f\x03new").verdict is Verdict.READY  # field 2047, a string


@given(st.binary(max_size=300) | st.binary(max_size=60).map(lambda end: encode(FULL) + end))
def test_no_bytes_do_more_than_be_dropped(data: bytes) -> None:
    try:
        report = read(data)
    except ReportError:
        return
    assert report.boot_id
    assert report.sequence
    assert report.kv_cache_usage_ratio is None or 0 <= report.kv_cache_usage_ratio <= 1


@pytest.mark.parametrize("count", [1_000_001, 2**32, 10**30])
def test_impossible_counts_of_an_engine_are_left_out(count: int) -> None:
    """An engine may state any number; the report's fields hold 32 bits."""
    lying = dataclasses.replace(FULL, requests_in_flight=count, requests_waiting=count)
    report = decode(encode(lying), pool="p", engine="e", received_at_s=7.0)
    assert (report.requests_in_flight, report.requests_waiting) == (None, None)
    assert report.verdict is Verdict.HUNG


def test_token_gaps_are_read_apart_from_the_report() -> None:
    gaps = TokenGaps(bounds_s=(0.01, 0.1, 80.0), counts=(5, 9, 9, 10), sum_s=1.5)
    data = encode(dataclasses.replace(FULL, token_gaps=gaps))
    assert decode_totals(data).gaps == gaps
    assert decode(data, pool="p", engine="e", received_at_s=7.0).token_gaps is None
    assert decode_totals(encode(FULL)).gaps is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"bounds_s": [0.1], "counts": [1]},
        {"bounds_s": [0.1, 0.1], "counts": [1, 2, 3]},
        {"bounds_s": [-0.1], "counts": [1, 2]},
        {"bounds_s": [math.nan], "counts": [1, 2]},
        {"bounds_s": [math.inf], "counts": [1, 2]},
        {"bounds_s": [0.1], "counts": [3, 2]},
        {"bounds_s": [0.1], "counts": [3, 1 << 60]},
        {"bounds_s": [0.1 * n for n in range(1, 100)], "counts": range(100)},
    ],
)
def test_token_gaps_of_a_liar_are_dropped(wrong: dict[str, list[float]]) -> None:
    message = pb.EngineReport(**SAYS, token_gaps=pb.TokenGaps(**wrong))  # type: ignore[arg-type]
    assert decode_totals(message.SerializeToString()).gaps is None


def test_work_is_read_apart_from_the_report() -> None:
    work = TokenWork(prompt_tokens=1 << 40, generation_tokens=7, finished=3)
    data = encode(dataclasses.replace(FULL, token_work=work))
    assert decode_totals(data).work == work
    assert decode(data, pool="p", engine="e", received_at_s=7.0).token_work is None
    assert decode_totals(encode(FULL)).work is None
    lie = pb.TokenWork(prompt_tokens=1 << 60, generation_tokens=7, finished=3)
    assert decode_totals(pb.EngineReport(**SAYS, token_work=lie).SerializeToString()).work is None  # type: ignore[arg-type]
    absurd = dataclasses.replace(work, generation_tokens=10**30)
    assert decode_totals(encode(dataclasses.replace(FULL, token_work=absurd))).work is None


def test_token_gaps_with_an_impossible_sum_have_none() -> None:
    gaps = pb.TokenGaps(bounds_s=[0.1], counts=[1, 2], sum_s=math.nan)
    found = decode_totals(pb.EngineReport(**SAYS, token_gaps=gaps).SerializeToString()).gaps  # type: ignore[arg-type]
    assert found == TokenGaps(bounds_s=(0.1,), counts=(1, 2), sum_s=0.0)
