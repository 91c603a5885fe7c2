"""Read a history file; truncated files and unknown fields of later versions are accepted."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from chaos.history.event_codec import HistoryError, from_line
from chaos.history.history_events import (
    FORMAT,
    AttemptRecord,
    ConfigPush,
    ConfigReply,
    ControlPlaneDecision,
    CpuUsage,
    EngineDetection,
    ExperimentAborted,
    ExperimentBegan,
    ExperimentEnded,
    FaultBegan,
    FaultHealed,
    HistoryEvent,
    ProcessExit,
    ProxySample,
    RequestRecord,
)
from chaos.history.recorded_history import History, Outage

_MOST_UNREAD: Final = 20
_GZIP: Final = b"\x1f\x8b"
_E = TypeVar("_E", bound=HistoryEvent)


class _First(BaseModel):
    """Fields of the first line in every format."""

    model_config = ConfigDict(extra="ignore")

    event: str
    format: int


def read_history(path: Path) -> History:
    """Read the history; raises HistoryError if this version cannot read it."""
    try:
        with path.open("rb") as file:
            began = _began(path, file.readline())
            gathered = _Gathered()
            for number, line in enumerate(file, start=2):
                gathered.take(path, number, line)
    except OSError as error:
        raise HistoryError(f"{path}: {error.strerror or error}") from error
    return gathered.history(began)


def history_of(events: Iterable[HistoryEvent]) -> History:
    """A history from events in memory; the first must be ``ExperimentBegan``."""
    began, *others = events
    if not isinstance(began, ExperimentBegan):
        raise HistoryError("the first event of a history must be `began`")
    gathered = _Gathered()
    for event in others:
        gathered.add(event)
    return gathered.history(began)


def _began(path: Path, line: bytes) -> ExperimentBegan:
    if not line:
        raise HistoryError(f"{path}: the file is empty")
    if line.startswith(_GZIP):
        raise HistoryError(f"{path}: compressed file; `gunzip` it first")
    try:
        first = _First.model_validate_json(line)
    except ValidationError as error:
        raise HistoryError(f"{path}:1: not a history: {_first(error)}") from error
    if first.event != "began":
        raise HistoryError(f"{path}:1: a history starts with the event `began`, not {first.event}")
    if first.format != FORMAT:
        raise HistoryError(
            f"{path}:1: the history has format {first.format}, this version reads {FORMAT}; "
            "check it with the version that wrote it"
        )
    try:
        began = from_line(line)
    except ValidationError as error:
        raise HistoryError(f"{path}:1: {_first(error)}") from error
    assert isinstance(began, ExperimentBegan)  # noqa: S101 -- first event of every history
    return began


@dataclass(slots=True, kw_only=True)
class _Gathered:
    """Events by kind."""

    requests: list[RequestRecord] = field(default_factory=list)
    attempts: list[AttemptRecord] = field(default_factory=list)
    samples: list[ProxySample] = field(default_factory=list)
    detected: list[EngineDetection] = field(default_factory=list)
    decided: list[ControlPlaneDecision] = field(default_factory=list)
    pushed: list[ConfigPush] = field(default_factory=list)
    answered: list[ConfigReply] = field(default_factory=list)
    gone: list[ProcessExit] = field(default_factory=list)
    bitten: list[FaultBegan] = field(default_factory=list)
    healed: dict[str, float] = field(default_factory=dict)
    aborted: ExperimentAborted | None = None
    used: CpuUsage | None = None
    ended_s: float | None = None
    unread: list[str] = field(default_factory=list)
    unread_count: int = 0

    def take(self, path: Path, number: int, line: bytes) -> None:
        """Add the event of a line, or note the line as unreadable."""
        try:
            event = from_line(line)
        except ValidationError as error:
            if line.strip():
                self.unread_count += 1
                cut = "truncated line" if not line.endswith(b"\n") else _first(error)
                self.unread.append(f"{path}:{number}: {cut}")
                del self.unread[_MOST_UNREAD:]
            return
        if isinstance(event, ExperimentBegan):
            raise HistoryError(f"{path}:{number}: a second history starts here; keep one history per file")
        self.add(event)

    def add(self, event: HistoryEvent) -> None:  # noqa: C901, PLR0912 -- one line per sort of event
        match event:
            case RequestRecord():
                self.requests.append(event)
            case AttemptRecord():
                self.attempts.append(event)
            case ProxySample():
                self.samples.append(event)
            case ConfigPush():
                self.pushed.append(event)
            case ConfigReply():
                self.answered.append(event)
            case ControlPlaneDecision():
                self.decided.append(event)
            case EngineDetection():
                self.detected.append(event)
            case FaultBegan():
                self.bitten.append(event)
            case FaultHealed():
                self.healed[event.id] = event.at_s
            case ProcessExit():
                self.gone.append(event)
            case ExperimentAborted():
                self.aborted = event
            case CpuUsage():
                self.used = event
            case ExperimentEnded():
                self.ended_s = event.at_s

    def history(self, began: ExperimentBegan) -> History:
        """The history, each kind sorted by time."""
        unread = list(self.unread)
        if self.unread_count > len(unread):
            unread.append(f"and {self.unread_count - len(unread)} more")
        outages = [
            Outage(
                id=one.id,
                fault=one.fault,
                targets=one.targets,
                start_s=one.at_s,
                end_s=self.healed.get(one.id),
            )
            for one in self.bitten
        ]
        return History(
            began=began,
            outages=tuple(sorted(outages, key=lambda one: one.start_s)),
            requests=_by_time(self.requests),
            attempts=_by_time([one for one in self.attempts if not one.prefill]),
            prefills=_by_time([one for one in self.attempts if one.prefill]),
            samples=_by_time(self.samples),
            detected=_by_time(self.detected),
            decided=_by_time(self.decided),
            pushed=_by_time(self.pushed),
            answered=_by_time(self.answered),
            gone=_by_time(self.gone),
            aborted=self.aborted,
            used=self.used,
            ended_s=self.ended_s,
            unread=tuple(unread),
        )


def _by_time(events: list[_E]) -> tuple[_E, ...]:
    return tuple(sorted(events, key=attrgetter("at_s")))


def _first(error: ValidationError) -> str:
    found = error.errors()[0]
    where = ".".join(map(str, found["loc"]))
    return f"{where}: {found['msg']}" if where else str(found["msg"])
