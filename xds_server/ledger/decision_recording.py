"""Records the inputs of ``decide``, round by round, as lines of JSON, so that they can be decided again.

The first line of a file is a header. Each further line is a round: its time, and whatever changed since the
previous one. The first round has everything, so that each file can be read alone, also after a rotation. A round
of a calm fleet takes a few hundred bytes. Rounds are at least ``SPACING_S`` apart; the next one includes what a
skipped round saw.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pydantic import TypeAdapter, ValidationError

from engine.report import EngineReport
from policies.model import PolicySet
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.ledger.jsonl_writer import JsonlWriter
from xds_server.model.fleet import Engine, EngineId, Fleet, declared
from xds_server.model.memo import reuse_tuple
from xds_server.model.order import Order
from xds_server.model.pod_state import PodState
from xds_server.model.pool_traffic import EngineTraffic, PoolTraffic, Proxy
from xds_server.state.atomic_file import format_mismatch

FORMAT: Final = "switchgear-recording/1"
MAX_BYTES: Final = 256 * 1024 * 1024
SPACING_S: Final = 0.1


class RecordingError(Exception):
    """A recording cannot be read; the message has the line and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEngine:
    """What is known of one engine: its last report, when it arrived, probes in a row, its pod state."""

    report: EngineReport | None = None
    received_at_s: float | None = None
    good_looks: int = 0
    bad_looks: int = 0
    orchestrator: PodState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedReport:
    """A report that repeats the previous one; only these fields moved."""

    observed_at_s: float
    received_at_s: float | None
    sequence: int = 0
    good_looks: int = 0
    bad_looks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingHeader:
    """The first line of a file."""

    format: str
    begun_at_unix_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRound:
    """What changed by ``now_s``; None or absent means unchanged.

    ``policies`` are the texts by file name. ``engines`` and ``again`` are by pool and engine. ``traffic`` is by
    pool; its ``engines`` are only those that changed, and ``gone`` names pools without reports.
    """

    now_s: float
    unix_s: float
    policies: Mapping[str, str] | None = None
    engines: Mapping[str, Mapping[str, RecordedEngine]] = field(default_factory=dict)
    again: Mapping[str, Mapping[str, RepeatedReport]] = field(default_factory=dict)
    traffic: Mapping[str, PoolTraffic] = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    proxies: Mapping[str, Proxy] | None = None
    proxies_by_role: Mapping[str, int] | None = None
    calling_zones: frozenset[str] | None = None
    orders: tuple[Order, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedInputs:
    """All inputs of one round of ``decide``."""

    now_s: float
    unix_s: float
    texts: Mapping[str, str]
    fleet: Fleet
    proxies: Mapping[str, Proxy]
    proxies_by_role: Mapping[str, int]
    calling_zones: frozenset[str]
    orders: Mapping[EngineId, Order]


_HEADER: Final = TypeAdapter(RecordingHeader)
_ROUND: Final = TypeAdapter(RecordedRound)
_NO_ENGINES: Mapping[str, EngineTraffic] = MappingProxyType({})


class DecisionRecorder:
    """Writes rounds; call ``record`` after each."""

    def __init__(self, lines: JsonlWriter) -> None:
        self._lines = lines
        self._last: RecordedInputs | None = None

    def record(self, moment: RecordedInputs) -> None:
        """Write what changed since the last round written."""
        last = self._last
        if last is not None and moment.now_s - last.now_s < SPACING_S:
            return
        if last is None or self._lines.full:
            # Each file stands alone; lines of another run are not part of this recording.
            self._lines.rotate()
            last = None
            header = RecordingHeader(format=FORMAT, begun_at_unix_s=moment.unix_s)
            self._lines.write(_HEADER.dump_json(header).decode())
        # Mappings are read-only here; pydantic does not know those and writes them as dicts.
        line = _ROUND.dump_json(
            round_delta(last, moment), exclude_defaults=True, fallback=dict, warnings="none"
        ).decode()
        # All later rounds build on a lost one: start again with a full round.
        self._last = moment if self._lines.write(line) else None


def round_delta(last: RecordedInputs | None, now: RecordedInputs) -> RecordedRound:
    """What changed; everything without a last round."""
    said, again = _engines(None if last is None else last.fleet, now.fleet)
    known = {} if last is None else last.fleet.traffic
    return RecordedRound(
        now_s=now.now_s,
        unix_s=now.unix_s,
        policies=now.texts if last is None or last.texts != now.texts else None,
        engines=said,
        again=again,
        traffic={
            name: _moved(known.get(name), traffic)
            for name, traffic in now.fleet.traffic.items()
            if known.get(name) is not traffic
        },
        gone=tuple(name for name in known if name not in now.fleet.traffic),
        proxies=now.proxies if last is None or last.proxies != now.proxies else None,
        proxies_by_role=now.proxies_by_role
        if last is None or last.proxies_by_role != now.proxies_by_role
        else None,
        calling_zones=now.calling_zones if last is None or last.calling_zones != now.calling_zones else None,
        orders=tuple(now.orders.values()) if last is None or last.orders != now.orders else None,
    )


def _moved(before: PoolTraffic | None, now: PoolTraffic) -> PoolTraffic:
    """The traffic with only the engines that changed."""
    known = _NO_ENGINES if before is None else before.engines
    return replace(now, engines={name: one for name, one in now.engines.items() if known.get(name) != one})


def _engines(
    before: Fleet | None, now: Fleet
) -> tuple[Mapping[str, Mapping[str, RecordedEngine]], Mapping[str, Mapping[str, RepeatedReport]]]:
    said: dict[str, dict[str, RecordedEngine]] = {}
    again: dict[str, dict[str, RepeatedReport]] = {}
    for name, engines in now.pools.items():
        if before is not None and before.pools.get(name) is engines:
            continue
        for engine in engines:
            known = None if before is None else before.engine(engine.id)
            if known is engine or (known is None and engine.report is None and engine.pod_state is None):
                continue
            word_before = None if known is None else known.pod_state
            spoken = word_before != engine.pod_state
            if (
                known is not None
                and not spoken
                and known.report == engine.report
                and known.received_at_s == engine.received_at_s
            ):
                continue
            if (
                known is not None
                and not spoken
                and engine.report is not None
                and _repeats(known.report, engine.report)
            ):
                again.setdefault(name, {})[engine.id.engine] = RepeatedReport(
                    observed_at_s=engine.report.observed_at_s,
                    received_at_s=engine.received_at_s,
                    sequence=engine.report.sequence,
                    good_looks=engine.good_looks,
                    bad_looks=engine.bad_looks,
                )
            else:
                said.setdefault(name, {})[engine.id.engine] = RecordedEngine(
                    report=engine.report,
                    received_at_s=engine.received_at_s,
                    good_looks=engine.good_looks,
                    bad_looks=engine.bad_looks,
                    orchestrator=engine.pod_state,
                )
    return said, again


def _repeats(known: EngineReport | None, fresh: EngineReport) -> bool:
    return known is not None and fresh == replace(
        known, observed_at_s=fresh.observed_at_s, sequence=fresh.sequence
    )


@dataclass(slots=True)
class RecordingReader:
    """The state after the rounds of a file so far, under the recorded policies.

    ``torn``: the last line was incomplete, as after a crash, and was skipped.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    engines: dict[EngineId, RecordedEngine] = field(default_factory=dict)
    traffic: dict[str, PoolTraffic] = field(default_factory=dict)
    proxies: Mapping[str, Proxy] = field(default_factory=dict)
    proxies_by_role: Mapping[str, int] = field(default_factory=dict)
    calling_zones: frozenset[str] = frozenset()
    orders: Mapping[EngineId, Order] = field(default_factory=dict)
    torn: bool = False

    def apply(self, one: RecordedRound) -> None:
        """Apply one round."""
        if one.policies is not None:
            self.texts = one.policies
        for pool, engines in one.engines.items():
            for name, said in engines.items():
                self.engines[EngineId(pool, name)] = said
        for pool, repeats in one.again.items():
            for name, again in repeats.items():
                self._say_again(EngineId(pool, name), again)
        for pool, traffic in one.traffic.items():
            known = self.traffic.get(pool)
            engines_of = _NO_ENGINES if known is None else known.engines
            self.traffic[pool] = replace(traffic, engines={**engines_of, **traffic.engines})
        for pool in one.gone:
            self.traffic.pop(pool, None)
        self.proxies = self.proxies if one.proxies is None else one.proxies
        self.proxies_by_role = self.proxies_by_role if one.proxies_by_role is None else one.proxies_by_role
        self.calling_zones = self.calling_zones if one.calling_zones is None else one.calling_zones
        if one.orders is not None:
            self.orders = {order.engine: order for order in one.orders}

    @property
    def connected(self) -> ConnectedProxies:
        """The proxies as given to ``decide``."""
        return ConnectedProxies(
            by_node=self.proxies, by_role=self.proxies_by_role, calling_zones=self.calling_zones
        )

    def orders_at(self, now_s: float) -> Mapping[EngineId, Order]:
        """The orders in force at this time."""
        return {key: one for key, one in self.orders.items() if one.until_s > now_s}

    def _say_again(self, key: EngineId, again: RepeatedReport) -> None:
        known = self.engines.get(key)
        if known is None or known.report is None:
            return
        report = replace(known.report, observed_at_s=again.observed_at_s, sequence=again.sequence)
        self.engines[key] = RecordedEngine(
            report=report,
            received_at_s=again.received_at_s,
            good_looks=again.good_looks,
            bad_looks=again.bad_looks,
            orchestrator=known.orchestrator,
        )

    def fleet(self, policies: PolicySet, before: Fleet | None = None) -> Fleet:
        """The fleet as these policies declare it, with the recorded reports; unchanged parts stay the same."""
        base = declared(policies) if before is None else before
        pools: dict[str, tuple[Engine, ...]] = {}
        for name, engines in base.pools.items():
            fresh = tuple(self._with_said(engine) for engine in engines)
            pools[name] = reuse_tuple(engines, fresh)
        return replace(base, pools=MappingProxyType(pools), traffic=MappingProxyType(dict(self.traffic)))

    def _with_said(self, engine: Engine) -> Engine:
        said = self.engines.get(engine.id)
        if said is None or (
            engine.report is said.report
            and engine.received_at_s == said.received_at_s
            and engine.pod_state == said.orchestrator
        ):
            return engine
        return replace(
            engine,
            report=said.report,
            received_at_s=said.received_at_s,
            good_looks=said.good_looks,
            bad_looks=said.bad_looks,
            pod_state=said.orchestrator,
        )


def read_rounds(path: Path, reading: RecordingReader) -> Iterator[RecordedRound]:
    """The rounds of a file, applied to ``reading`` before they are yielded; ``RecordingError`` names the line."""
    try:
        with path.open("rb") as file:
            first = file.readline()
            _check_header(path, first)
            line, number = file.readline(), 2
            while line:
                following = file.readline()
                try:
                    one = _ROUND.validate_json(line)
                except ValidationError as error:
                    if not following and not line.endswith(b"\n"):
                        reading.torn = True
                        return
                    raise RecordingError(f"{path}:{number}: {_first(error)}") from error
                reading.apply(one)
                yield one
                line, number = following, number + 1
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror or error}") from error


def _check_header(path: Path, line: bytes) -> None:
    try:
        header = _HEADER.validate_json(line)
    except ValidationError as error:
        raise RecordingError(f"{path}:1: not a recording of `switchgear serve --record`") from error
    if header.format != FORMAT:
        raise RecordingError(f"{path}:1: {format_mismatch(header.format, FORMAT)}")


def _first(error: ValidationError) -> str:
    found = error.errors()[0]
    where = ".".join(map(str, found["loc"]))
    return f"{where}: {found['msg']}" if where else str(found["msg"])
