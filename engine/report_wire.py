"""EngineReport to bytes and back. The reader trusts nothing.

Agents may be broken, newer or malicious. A report without verdict, boot id or sequence is a ``ReportError``.
Otherwise invalid numbers become unknown, texts are cut and made printable, lists are bounded, and unknown fields
are ignored.
"""

import math
from collections.abc import Iterable
from enum import StrEnum
from itertools import pairwise
from typing import Final

from google.protobuf.message import DecodeError

from engine.adapter_list import MAX_ADAPTER_NAME, MAX_ADAPTERS
from engine.proto import engine_report_pb2 as pb
from engine.report import (
    CanaryResults,
    Doubt,
    DrainRequest,
    EngineReport,
    EngineTotals,
    Evidence,
    GpuSummary,
    GpuVitals,
    Quantiles,
    ReportSource,
    TokenGaps,
    TokenWork,
    Verdict,
)

SCHEMA_VERSION: Final = 1

MAX_REPORT_BYTES: Final = 64 * 1024
"""A report with eight GPUs has about 1 KiB."""

# Generous limits for real engines and readable texts.
_MAX_TEXT: Final = 500
_MAX_NAME: Final = 200
_MAX_REASONS: Final = 16
_MAX_GPUS: Final = 64
_MAX_ITEMS: Final = 32
_MAX_RANKS: Final = 1024
_MAX_COUNT: Final = 1_000_000
_MAX_BOUNDS: Final = 64
_MAX_GAPS: Final = 1 << 53  # exact as a float
_MAX_GAP_SUM_S: Final = 1e15
_MAX_SECONDS: Final = 10 * 366 * 86_400.0
_MAX_RATE: Final = 1e9
_MAX_WATTS: Final = 1e5

# Sent in ``verdict`` for readers older than the verdict, which drop a report whose verdict they do not know.
_NEAREST: Final = {Verdict.MISCONFIGURED: Verdict.DEGRADED, Verdict.PAUSED: Verdict.HUNG}
_VERDICTS: Final = {pb.Verdict.Value(verdict.name): verdict for verdict in Verdict}
_DOUBTS: Final = {pb.Doubt.Value(doubt.name): doubt for doubt in Doubt}
_ACTIONS: Final = {number: name.lower() for name, number in pb.GpuAction.items() if number}


class ReportDropReason(StrEnum):
    """Why a report was dropped."""

    SIZE = "size"  # too large
    GARBAGE = "garbage"  # not an EngineReport
    INCOMPLETE = "incomplete"  # without verdict, boot id or sequence
    VERDICT = "verdict"  # unknown
    STALE = "stale"  # older than the last report
    FLOOD = "flood"  # above the rate limit


class ReportError(ValueError):
    """An unusable report; the message is the reason."""

    def __init__(self, flaw: ReportDropReason, text: str) -> None:
        super().__init__(text)
        self.flaw = flaw


def _wire_count(count: int | None) -> int | None:
    """A count that an engine states; None if no engine can have as many."""
    return count if count is not None and count <= _MAX_COUNT else None


def encode(report: EngineReport) -> bytes:
    """Bytes of a report, without pool and engine names."""
    reasons = report.reasons or (Evidence(reading="", sentence=report.evidence),)
    message = pb.EngineReport(
        schema_version=SCHEMA_VERSION,
        boot_id=report.boot_id,
        sequence=report.sequence,
        verdict=_NEAREST.get(report.verdict, report.verdict).name,
        exact_verdict=report.verdict.name if report.verdict in _NEAREST else None,
        evidence=[
            pb.Evidence(
                reading=reason.reading,
                threshold=reason.threshold,
                age_s=reason.age_s,
                sentence=reason.sentence,
            )
            for reason in reasons
        ],
        doubt=None if report.doubt is None else report.doubt.name,
        requests_in_flight=_wire_count(report.requests_in_flight),
        requests_waiting=_wire_count(report.requests_waiting),
        slots=report.slots,
        kv_cache_usage_ratio=report.kv_cache_usage_ratio,
        tokens_per_s=report.tokens_per_s,
        time_to_first_token=_quantiles_message(report.time_to_first_token),
        time_per_output_token=_quantiles_message(report.time_per_output_token),
        model=report.model,
        revision=report.revision,
        gpu=None if report.gpu is None else _gpu_message(report.gpu),
        drain=(
            None if report.drain is None else pb.Drain(requested=True, deadline_in_s=report.drain.deadline_in_s)
        ),
        canary=_canary_message(report.canary, report.observed_at_s),
        ranks=report.ranks,
        hung_ranks=report.hung_ranks,
        adapters=None if report.adapters is None else pb.Adapters(names=report.adapters),
        token_gaps=None if report.token_gaps is None else _token_gaps_message(report.token_gaps),
        token_work=None if report.token_work is None else _token_work_message(report.token_work),
    )
    return message.SerializeToString()


def decode(data: bytes, *, pool: str, engine: str, received_at_s: float, gpus: bool = True) -> EngineReport:
    """Parse ``data``, a report of the dialled engine, observed at reception.

    ``gpus`` False skips GPUs, which no decision uses and which are half of the work. Raises ``ReportError``.
    """
    if len(data) > MAX_REPORT_BYTES:
        raise ReportError(ReportDropReason.SIZE, f"{len(data)} bytes: more than {MAX_REPORT_BYTES}")
    try:
        message = pb.EngineReport.FromString(data)
    except DecodeError as error:
        raise ReportError(ReportDropReason.GARBAGE, "not an EngineReport") from error
    verdict = _VERDICTS.get(message.exact_verdict) or _VERDICTS.get(message.verdict)
    if message.schema_version < 1:
        raise ReportError(ReportDropReason.INCOMPLETE, "no schema version")
    if message.verdict == pb.VERDICT_UNSPECIFIED:
        raise ReportError(ReportDropReason.INCOMPLETE, "no verdict")
    if verdict is None:
        raise ReportError(
            ReportDropReason.VERDICT, f"verdict {message.verdict} is unknown (schema {message.schema_version})"
        )
    if not message.sequence:
        raise ReportError(ReportDropReason.INCOMPLETE, "no sequence")
    boot_id = _text(message.boot_id, _MAX_NAME)
    if not boot_id:
        raise ReportError(ReportDropReason.INCOMPLETE, "no boot id")
    reasons = tuple(
        Evidence(
            reading=_text(one.reading, _MAX_NAME),
            threshold=_text(one.threshold, _MAX_NAME),
            age_s=_number(one.age_s, _MAX_SECONDS) or 0.0,
            sentence=_text(one.sentence, _MAX_TEXT),
        )
        for one in message.evidence[:_MAX_REASONS]
    )
    return EngineReport(
        pool=pool,
        engine=engine,
        verdict=verdict,
        evidence=next((one.sentence for one in reasons if one.sentence), "no reason given"),
        observed_at_s=received_at_s,
        sequence=message.sequence,
        boot_id=boot_id,
        requests_in_flight=_count(message, "requests_in_flight"),
        requests_waiting=_count(message, "requests_waiting"),
        kv_cache_usage_ratio=_measure(message, "kv_cache_usage_ratio", 1.0),
        tokens_per_s=_measure(message, "tokens_per_s", _MAX_RATE),
        doubt=_DOUBTS.get(message.doubt),
        source=ReportSource.AGENT,
        reasons=reasons,
        slots=_count(message, "slots") or None,
        time_to_first_token=_quantiles(message, "time_to_first_token"),
        time_per_output_token=_quantiles(message, "time_per_output_token"),
        model=_text(message.model, _MAX_TEXT),
        revision=_text(message.revision, _MAX_NAME),
        gpu=_gpu(message.gpu) if gpus and message.HasField("gpu") else None,
        drain=_drain(message.drain) if message.HasField("drain") and message.drain.requested else None,
        canary=_canary(message.canary, received_at_s) if message.HasField("canary") else None,
        ranks=_texts(message.ranks, _MAX_RANKS),
        hung_ranks=_texts(message.hung_ranks, _MAX_RANKS),
        adapters=_adapters(message.adapters) if message.HasField("adapters") else None,
    )


def decode_totals(data: bytes) -> EngineTotals:
    """Growing counters from ``data``, which ``decode`` accepted; None for those that are absent or unsound."""
    message = pb.EngineReport.FromString(data)
    work = _token_work(message.token_work) if message.HasField("token_work") else None
    return EngineTotals(gaps=_token_gaps(message.token_gaps), work=work)


def _token_work(message: pb.TokenWork) -> TokenWork | None:
    counts = message.prompt_tokens, message.generation_tokens, message.finished
    if max(counts) > _MAX_GAPS:
        return None
    return TokenWork(prompt_tokens=counts[0], generation_tokens=counts[1], finished=counts[2])


def _token_work_message(work: TokenWork) -> pb.TokenWork | None:
    counts = work.prompt_tokens, work.generation_tokens, work.finished
    if max(counts) > _MAX_GAPS:
        return None
    return pb.TokenWork(prompt_tokens=counts[0], generation_tokens=counts[1], finished=counts[2])


def _token_gaps(message: pb.TokenGaps) -> TokenGaps | None:
    bounds_s, counts = tuple(message.bounds_s), tuple(message.counts)
    if not 0 < len(bounds_s) <= _MAX_BOUNDS or len(counts) != len(bounds_s) + 1 or counts[-1] > _MAX_GAPS:
        return None
    ascending = all(a < b for a, b in pairwise((0.0, *bounds_s))) and bounds_s[-1] <= _MAX_SECONDS
    if not ascending or any(a > b for a, b in pairwise(counts)):
        return None
    return TokenGaps(bounds_s=bounds_s, counts=counts, sum_s=_number(message.sum_s, _MAX_GAP_SUM_S) or 0.0)


def _token_gaps_message(gaps: TokenGaps) -> pb.TokenGaps:
    return pb.TokenGaps(bounds_s=gaps.bounds_s, counts=gaps.counts, sum_s=gaps.sum_s)


def _adapters(message: pb.Adapters) -> tuple[str, ...]:
    """Names that can be compared with a route's: one that was cut or changed would be another adapter's."""
    return tuple(
        name
        for name in list(message.names)[:MAX_ADAPTERS]
        if 0 < len(name) <= MAX_ADAPTER_NAME and name.isprintable()
    )


def _canary_message(canary: CanaryResults | None, at_s: float) -> pb.Canary | None:
    if canary is None:
        return None
    return pb.Canary(in_row=canary.in_row, age_s=max(0.0, at_s - canary.at_s), took_s=canary.took_s)


def _canary(message: pb.Canary, received_at_s: float) -> CanaryResults | None:
    age_s, took_s = _number(message.age_s, _MAX_SECONDS), _number(message.took_s, _MAX_SECONDS)
    if age_s is None or took_s is None:
        return None
    return CanaryResults(in_row=min(message.in_row, _MAX_COUNT), at_s=received_at_s - age_s, took_s=took_s)


def _quantiles_message(quantiles: Quantiles | None) -> pb.Quantiles | None:
    return None if quantiles is None else pb.Quantiles(p50_s=quantiles.p50_s, p99_s=quantiles.p99_s)


def _gpu_message(gpu: GpuSummary) -> pb.GpuGroup:
    return pb.GpuGroup(
        action=gpu.action.upper() or None,
        statement=gpu.statement,
        gpus=[
            pb.Gpu(
                rank=one.rank,
                uuid=one.uuid,
                name=one.name,
                temperature_c=one.temperature_c,
                power_w=one.power_w,
                utilisation_percent=one.utilisation_percent,
                sm_clock_mhz=one.sm_clock_mhz,
                memory_total_bytes=one.memory_total_bytes,
                memory_used_bytes=one.memory_used_bytes,
                memory_reserved_bytes=one.memory_reserved_bytes,
                ecc_corrected=one.ecc_corrected,
                ecc_uncorrected=one.ecc_uncorrected,
                throttled=one.throttled,
                xids=one.xids,
            )
            for one in gpu.gpus
        ],
    )


def _gpu(message: pb.GpuGroup) -> GpuSummary:
    return GpuSummary(
        action=_ACTIONS.get(message.action, ""),
        statement=_text(message.statement, _MAX_TEXT),
        gpus=tuple(_vitals(one) for one in message.gpus[:_MAX_GPUS]),
    )


def _vitals(message: pb.Gpu) -> GpuVitals:
    return GpuVitals(
        rank=message.rank,
        uuid=_text(message.uuid, _MAX_NAME),
        name=_text(message.name, _MAX_NAME),
        temperature_c=_whole(message, "temperature_c"),
        power_w=_measure(message, "power_w", _MAX_WATTS),
        utilisation_percent=_whole(message, "utilisation_percent"),
        sm_clock_mhz=_whole(message, "sm_clock_mhz"),
        memory_total_bytes=_whole(message, "memory_total_bytes"),
        memory_used_bytes=_whole(message, "memory_used_bytes"),
        memory_reserved_bytes=_whole(message, "memory_reserved_bytes"),
        ecc_corrected=_whole(message, "ecc_corrected"),
        ecc_uncorrected=_whole(message, "ecc_uncorrected"),
        throttled=_texts(message.throttled),
        xids=tuple(message.xids[:_MAX_ITEMS]),
    )


def _drain(message: pb.Drain) -> DrainRequest:
    return DrainRequest(deadline_in_s=_measure(message, "deadline_in_s", _MAX_SECONDS))


def _quantiles(message: pb.EngineReport, field: str) -> Quantiles | None:
    if not message.HasField(field):
        return None
    said: pb.Quantiles = getattr(message, field)
    p50_s, p99_s = _number(said.p50_s, _MAX_SECONDS), _number(said.p99_s, _MAX_SECONDS)
    if p50_s is None or p99_s is None or p99_s < p50_s:
        return None
    return Quantiles(p50_s=p50_s, p99_s=p99_s)


def _whole(message: pb.Gpu, field: str) -> int | None:
    if not message.HasField(field):
        return None
    value: int = getattr(message, field)
    return value


def _count(message: pb.EngineReport, field: str) -> int | None:
    if not message.HasField(field):
        return None
    value: int = getattr(message, field)
    return value if value <= _MAX_COUNT else None


def _measure(message: pb.EngineReport | pb.Gpu | pb.Drain, field: str, most: float) -> float | None:
    return _number(getattr(message, field), most) if message.HasField(field) else None


def _number(value: float, most: float) -> float | None:
    """The value if finite and between 0 and ``most``, else None."""
    return value if math.isfinite(value) and 0 <= value <= most else None


def _texts(texts: Iterable[str], most: int = _MAX_ITEMS) -> tuple[str, ...]:
    return tuple(_text(text, _MAX_NAME) for text in list(texts)[:most])


def _text(text: str, most: int) -> str:
    """Cut to a length and make printable, for terminals and logs."""
    cut = text if len(text) <= most else text[: most - 1] + "…"
    return cut if cut.isprintable() else "".join(one if one.isprintable() else " " for one in cut)
