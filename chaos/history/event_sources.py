"""Events from agent logs, call logs, outcomes and the control plane's ledger. Pure.

If an engine flaps within a minute, ``times`` is how often.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from chaos.fake_engine.call_log import CallOutcome as Fate
from chaos.history.history_events import (
    GAP_DIGITS,
    AttemptRecord,
    ControlPlaneDecision,
    EngineDetection,
    RequestRecord,
)
from chaos.history.request_outcomes import RequestOutcome
from xds_server.decide.decisions import Health
from xds_server.decide.diff.change import ChangeKind
from xds_server.ledger.event import ClockReading, Event, from_line


class _Line(BaseModel):
    """The fields of a line that are used."""

    model_config = ConfigDict(extra="ignore")

    event: Literal["verdict"]
    timestamp: datetime
    now: str
    evidence: str = ""


def detections(engine: str, lines: Iterable[str], began_unix_s: float) -> Iterator[EngineDetection]:
    """Verdicts in an agent's log lines; ``began_unix_s`` is the wall clock at ``at_s`` 0."""
    for line in lines:
        try:
            said = _Line.model_validate_json(line)
        except ValidationError:
            continue  # another log line
        at_s = said.timestamp.timestamp() - began_unix_s
        yield EngineDetection(at_s=at_s, engine=engine, verdict=said.now, evidence=said.evidence)


REQUEST_ID_PREFIX: Final = "load-"
"""Prefix of our load generator's request ids; probes have no id, other requests are ignored."""


def call_log_attempts(
    engine: str, book: Mapping[str, Any], began_s: float, *, prefill: bool = False
) -> Iterator[AttemptRecord]:
    """Our load's calls in an engine's log; ``began_s`` is the monotonic time of ``at_s`` 0."""
    for call in book["calls"]:
        if not str(call["request_id"]).startswith(REQUEST_ID_PREFIX):
            continue
        started_s = call["started_at_s"]
        yield AttemptRecord(
            at_s=float(call["arrived_at_s"]) - began_s,
            engine=engine,
            request_id=str(call["request_id"]),
            number=int(call["attempt"]),
            streaming=bool(call["streaming"]),
            fate=Fate(call["outcome"]),
            reason=str(call["reason"]),
            closed_at_s=float(call["closed_at_s"]) - began_s,
            started_at_s=None if started_s is None else float(started_s) - began_s,
            slot_s=float(call["slot_s"]),
            tokens_generated=int(call["tokens_generated"]),
            tokens_sent=int(call["tokens_sent"]),
            prefill=prefill,
            prompt_tokens=int(call.get("prompt_tokens", 0)),
            cached_tokens=int(call.get("cached_tokens", 0)),
        )


def request_record(outcome: RequestOutcome, began_s: float) -> RequestRecord:
    """The outcome as an event; ``began_s`` is the monotonic time of ``at_s`` 0."""
    return RequestRecord(
        at_s=outcome.arrived_at_s - began_s,
        request_id=outcome.request_id,
        question=outcome.question or outcome.request_id,
        try_number=outcome.try_number,
        proxy=outcome.target,
        streaming=outcome.streaming,
        batch=outcome.batch,
        group=outcome.group,
        lag_s=outcome.lag_s,
        status=outcome.status,
        reason=outcome.reason,
        first_token_s=outcome.first_token_s,
        latency_s=outcome.latency_s,
        tokens=outcome.tokens,
        longest_gap_s=outcome.longest_gap_s,
        gaps_s=tuple(round(gap_s, GAP_DIGITS) for gap_s in outcome.gaps_s),
        fallback=outcome.fallback,
        refusal=outcome.refusal,
        session=outcome.session,
    )


_UNKNOWN: Final = ClockReading(s=0.0, unix_s=0.0)


def decisions(lines: Iterable[str], began_unix_s: float) -> Iterator[ControlPlaneDecision]:
    """Decisions in these ledger lines, skipping others; ``began_unix_s`` is the wall clock at ``at_s`` 0."""
    for line in lines:
        event = from_line(line, _UNKNOWN)
        if event is not None:
            yield decision_event(event, began_unix_s)


def decision_event(event: Event, began_unix_s: float) -> ControlPlaneDecision:
    """A ledger event as a history event."""
    numbers = {name: value for name, value in event.numbers.items() if math.isfinite(value)}
    if event.times > 1:
        numbers["times"] = float(event.times)
    return ControlPlaneDecision(
        at_s=event.at_unix_s - began_unix_s,
        kind=event.kind.value,
        engine=event.subject.engine,
        subject=str(event.subject),
        before=event.before,
        after=event.after,
        evidence=event.evidence,
        rule=event.rule,
        # Any health except HEALTHY means no new requests: Envoy's panic mode is off.
        out=event.after != Health.HEALTHY.value if event.kind is ChangeKind.HEALTH else None,
        numbers=numbers,
    )
