"""Replays a recording as it was and under other policies, and compares the decisions.

Both replays feed the same rounds to the same ``decide``. Unknowns are reported, not guessed: calls that an engine
got while in rotation would have gone elsewhere, so the failures that other policies avoid are only those recorded
in the time they would have ejected it. What an ejected engine would have answered is unknown.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from policies.findings import PolicyErrors
from policies.load import load_contents
from policies.model import PolicySet
from xds_server.decide.decide import decide
from xds_server.decide.decision_memory import NO_MEMORY, DecisionMemory
from xds_server.decide.decisions import Decisions, Health
from xds_server.decide.diff.decision_diff import diff_decisions
from xds_server.ledger.decision_recording import RecordedRound, RecordingError, RecordingReader, read_rounds
from xds_server.ledger.shadow import excess_per_s
from xds_server.model.fleet import EngineId, Fleet, redeclared
from xds_server.model.pool_traffic import PoolTraffic


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReplay:
    """One engine under both policies: time ejected, and number of ejections; ``None``: not declared there.

    ``avoided`` are failed calls, and ``moved`` successful ones, in the time when it was in rotation as recorded
    and ejected under the other policies: these would have avoided the first, and moved the second elsewhere.
    """

    pool: str
    engine: str
    out_s: float | None
    out_s_then: float | None
    left: int
    left_then: int
    avoided: int
    moved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingRange:
    """Minimum, mean over time, and maximum."""

    least: float
    mean: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReplay:
    """One pool under both policies: events by kind, requests in flight allowed, requests refused by estimate."""

    pool: str
    events: Mapping[str, int]
    events_then: Mapping[str, int]
    ceiling: CeilingRange | None
    ceiling_then: CeilingRange | None
    refused: float
    refused_then: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """The difference; names ending in ``_then`` are under the other policies. ``remarks`` are limitations."""

    begun_at_unix_s: float
    length_s: float
    rounds: int
    engines: tuple[EngineReplay, ...]
    pools: tuple[PoolReplay, ...]
    remarks: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether the other policies decide the same."""
        return all((one.out_s, one.left) == (one.out_s_then, one.left_then) for one in self.engines) and all(
            (one.events, one.ceiling, one.refused) == (one.events_then, one.ceiling_then, one.refused_then)
            for one in self.pools
        )


@dataclass(slots=True)
class _Ceiling:
    """Totals of a ceiling over time."""

    least: float = float("inf")
    most: float = 0.0
    area: float = 0.0
    time_s: float = 0.0

    def add(self, ceiling: float, passed_s: float) -> None:
        self.least, self.most = min(self.least, ceiling), max(self.most, ceiling)
        self.area, self.time_s = self.area + ceiling * passed_s, self.time_s + passed_s

    def range(self) -> CeilingRange | None:
        if not self.most:
            return None
        mean = self.area / self.time_s if self.time_s else self.most
        return CeilingRange(least=self.least, mean=round(mean, 1), most=self.most)


@dataclass(slots=True)
class _Track:
    """One set of policies during the replay."""

    policies: PolicySet
    fleet: Fleet | None = None
    decisions: Decisions | None = None
    memory: DecisionMemory = NO_MEMORY
    out_s: dict[EngineId, float] = field(default_factory=dict)
    left: Counter[EngineId] = field(default_factory=Counter)
    events: dict[str, Counter[str]] = field(default_factory=dict)
    ceilings: dict[str, _Ceiling] = field(default_factory=dict)
    refused: dict[str, float] = field(default_factory=dict)
    waiting: dict[str, float] = field(default_factory=dict)

    def go_on(self, reading: RecordingReader, now_s: float, passed_s: float) -> None:
        """Decide one more round, and account for the time that the previous decisions held."""
        self._add_time(passed_s)
        self.fleet = reading.fleet(self.policies, self.fleet)
        before = self.decisions
        self.decisions, self.memory = decide(
            self.policies,
            self.fleet,
            self.memory,
            proxies=reading.connected,
            now_s=now_s,
            orders=reading.orders_at(now_s),
        )
        for change in diff_decisions(before, self.decisions):
            self.events.setdefault(change.subject.pool, Counter())[change.kind.value] += 1
        for key, decision in self.decisions.engines.items():
            was = None if before is None else before.engines.get(key)
            if decision.health is not Health.HEALTHY and (was is None or was.health is Health.HEALTHY):
                self.left[key] += 1

    def _add_time(self, passed_s: float) -> None:
        if self.decisions is None or self.fleet is None:
            return
        for key, decision in self.decisions.engines.items():
            out = decision.health is not Health.HEALTHY
            self.out_s[key] = self.out_s.get(key, 0.0) + (passed_s if out else 0.0)
        for name, pool in self.decisions.pools.items():
            admission = pool.admission
            if admission is None:
                continue
            self.ceilings.setdefault(name, _Ceiling()).add(admission.total + admission.held, passed_s)
            if not admission.in_force or not admission.pressure:
                continue
            # Excess first fills the room that the ceiling leaves above the slots.
            room = max(0.0, admission.total - admission.slots)
            waiting = self.waiting.get(name, 0.0) + excess_per_s(self.fleet, name, admission.pressure) * passed_s
            self.waiting[name] = min(max(0.0, waiting), room)
            self.refused[name] = self.refused.get(name, 0.0) + max(0.0, waiting - room)

    def out(self, key: EngineId) -> bool:
        """Whether the engine is ejected now."""
        decision = None if self.decisions is None else self.decisions.engines.get(key)
        return decision is not None and decision.health is not Health.HEALTHY


def replay(path: Path, policies: PolicySet) -> ReplayReport:
    """Replay ``path`` under its own policies and under ``policies``; raises ``RecordingError``."""
    reading, then = RecordingReader(), _Track(policies=policies)
    own: _Track | None = None
    texts: Mapping[str, str] | None = None
    avoided: Counter[EngineId] = Counter()
    moved: Counter[EngineId] = Counter()
    calls: dict[EngineId, tuple[int, int]] = {}
    first: RecordedRound | None = None
    last: RecordedRound | None = None
    count = 0
    for one in read_rounds(path, reading):
        if own is None or reading.texts is not texts:
            own, texts = _under(_read(path, reading.texts), own), reading.texts
        for key, failed, succeeded in _since(calls, reading.traffic):
            if then.out(key) and not own.out(key):
                avoided[key] += failed
                moved[key] += succeeded
        passed_s = 0.0 if last is None else max(0.0, one.now_s - last.now_s)
        for track in (own, then):
            track.go_on(reading, one.now_s, passed_s)
        first, last, count = first or one, one, count + 1
    if own is None or first is None or last is None:
        raise RecordingError(f"{path}: no rounds recorded")
    return ReplayReport(
        begun_at_unix_s=first.unix_s,
        length_s=round(last.now_s - first.now_s, 3),
        rounds=count,
        engines=tuple(_engine(key, own, then, avoided, moved) for key in sorted({*own.out_s, *then.out_s})),
        pools=tuple(_pool(name, own, then) for name in sorted({*own.policies.pools, *then.policies.pools})),
        remarks=tuple(_remarks(reading, own, then)),
    )


def _read(path: Path, texts: Mapping[str, str]) -> PolicySet:
    try:
        return load_contents({Path(name): text.encode() for name, text in texts.items()})
    except PolicyErrors as errors:
        raise RecordingError(
            f"{path}: this version refuses the recorded policies: {errors.exceptions[0]}"
        ) from errors


def _under(policies: PolicySet, track: _Track | None) -> _Track:
    """The track under edited policies from here on."""
    if track is None:
        return _Track(policies=policies)
    if track.fleet is not None:
        track.fleet = redeclared(policies, track.fleet, track.policies)
    track.policies = policies
    return track


def _since(
    calls: dict[EngineId, tuple[int, int]], traffic: Mapping[str, PoolTraffic]
) -> Iterable[tuple[EngineId, int, int]]:
    """Calls of each engine since the last round: failed, successful. Updates ``calls``."""
    for pool, of in traffic.items():
        for name, one in of.engines.items():
            key = EngineId(pool, name)
            failed, succeeded = calls.get(key, (one.failed, one.succeeded))
            if (one.failed, one.succeeded) != (failed, succeeded):
                yield key, max(0, one.failed - failed), max(0, one.succeeded - succeeded)
            calls[key] = (one.failed, one.succeeded)


def _engine(
    key: EngineId, own: _Track, then: _Track, avoided: Mapping[EngineId, int], moved: Mapping[EngineId, int]
) -> EngineReplay:
    out_s, out_s_then = own.out_s.get(key), then.out_s.get(key)
    return EngineReplay(
        pool=key.pool,
        engine=key.engine,
        out_s=None if out_s is None else round(out_s, 3),
        out_s_then=None if out_s_then is None else round(out_s_then, 3),
        left=own.left.get(key, 0),
        left_then=then.left.get(key, 0),
        avoided=avoided.get(key, 0),
        moved=moved.get(key, 0),
    )


def _pool(name: str, own: _Track, then: _Track) -> PoolReplay:
    nothing = _Ceiling()
    return PoolReplay(
        pool=name,
        events=dict(own.events.get(name, {})),
        events_then=dict(then.events.get(name, {})),
        ceiling=own.ceilings.get(name, nothing).range(),
        ceiling_then=then.ceilings.get(name, nothing).range(),
        refused=round(own.refused.get(name, 0.0), 1),
        refused_then=round(then.refused.get(name, 0.0), 1),
    )


def _remarks(reading: RecordingReader, own: _Track, then: _Track) -> Iterable[str]:
    if reading.torn:
        yield "the last line was incomplete and was skipped"
    new = sorted(str(key) for key in then.out_s.keys() - own.out_s.keys())
    if new:
        yield f"{len(new)} engines of the other policies are not in the recording: {', '.join(new[:5])}"
    if not any(reading.traffic.values()):
        yield "no proxy reported traffic: decisions that depend on it see none"
