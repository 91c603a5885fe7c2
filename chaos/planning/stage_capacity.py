"""Engines of two stages: prefill, the transfer of KV caches, and decode.

A request takes a slot of a prefill engine, then its KV cache crosses the network, then it takes a slot of a decode
engine. Each stage is a queue of its own (``queueing``): what leaves an M/M/c queue arrives at the next one at
random, too (Burke's theorem). Each engine has one link, whose transfers share it; a shared link with load ``r``
takes ``1 / (1 - r)`` times as long as an idle one (M/G/1 processor sharing).
"""

import math
from dataclasses import dataclass, replace

from chaos.planning.error import PlanError
from chaos.planning.fleet_capacity import WaitPromise, most_arrivals_kept
from chaos.planning.pool_change import PoolOutcome, pool_outcome
from chaos.planning.pool_situation import uniform_engines
from chaos.planning.queueing import fewest_servers


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedDemand:
    """Requests of one route: how many, and how long on average."""

    arrivals_per_s: float
    input_tokens: float
    output_tokens: float

    def __post_init__(self) -> None:
        if self.input_tokens < 1 or self.output_tokens < 1:
            raise PlanError("a request has at least one input token and one output token")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEngine:
    """An engine of one stage: tokens per second of all its ``slots`` together."""

    tokens_per_s: float
    slots: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tokens_per_s) and self.tokens_per_s > 0):
            raise PlanError("tokens per second must be above 0")
        if self.slots < 1:
            raise PlanError(f"{self.slots} slots: need at least one")

    def service_s(self, tokens: float) -> float:
        """Time that a request of these tokens holds a slot while all slots are busy."""
        return tokens * self.slots / self.tokens_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class KvTransfer:
    """KV caches on their way: bytes of one token, and bytes per second of the link of one engine.

    ``most_load`` is the largest planned share of a link in use.
    """

    bytes_per_token: float
    bandwidth_bytes_per_s: float
    most_load: float = 0.7

    def __post_init__(self) -> None:
        if self.bytes_per_token <= 0 or self.bandwidth_bytes_per_s <= 0:
            raise PlanError("bytes per token and bandwidth must be above 0")
        if not 0 < self.most_load < 1:
            raise PlanError(f"link load {self.most_load:g}: must be between 0 and 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNeeds:
    """Fewest engines of a stage: by slots, by links, and the larger of both."""

    by_slots: int
    by_link: int

    @property
    def engines(self) -> int:
        """Fewest engines."""
        return max(self.by_slots, self.by_link)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRoom:
    """A stage with this many engines: its queue, the load of its links, and the growth that both allow.

    ``most_arrivals_per_s`` is the highest rate that meets the wait target and the link's limit.
    """

    engines: int
    now: PoolOutcome
    link_load: float
    most_arrivals_per_s: float
    head_room: float

    @property
    def kept(self) -> bool:
        """Whether wait target and link limit are met."""
        return self.head_room >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One stage: engines needed, and its room with all engines and without one of them."""

    needs: StageNeeds
    whole: StageRoom
    without_one: StageRoom


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPlan:
    """KV caches between the stages, while all engines are up.

    ``waiting_requests`` are those prefilled and not yet decoded: in transfer, or waiting for a decode slot.
    ``waiting_bytes`` are their caches at one prefill engine, which keeps each until it is fetched.
    ``first_token_s`` is the mean time to the first token: both waits, the prefill, the transfer and one token.
    """

    bytes_per_request: float
    idle_s: float
    mean_s: float
    waiting_requests: float
    waiting_bytes: float
    first_token_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoStagePlan:
    """Both stages of a route, and what is between them."""

    prefill: StagePlan
    decode: StagePlan
    transfer: TransferPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFleet:
    """Engines of both stages; counts of None: as many as needed, with one to spare."""

    prefill: StageEngine
    decode: StageEngine
    prefill_engines: int | None = None
    decode_engines: int | None = None


def two_stage_plan(
    demand: StagedDemand, fleet: StageFleet, transfer: KvTransfer, promise: WaitPromise
) -> TwoStagePlan:
    """Size both stages; raise ``PlanError`` if an input is invalid."""
    bytes_each = demand.input_tokens * transfer.bytes_per_token
    prefill = _stage(
        demand, (fleet.prefill, demand.input_tokens), fleet.prefill_engines, (transfer, bytes_each), promise
    )
    decode = _stage(
        demand, (fleet.decode, demand.output_tokens), fleet.decode_engines, (transfer, bytes_each), promise
    )
    idle_s = bytes_each / transfer.bandwidth_bytes_per_s
    busiest = max(prefill.whole.link_load, decode.whole.link_load)
    mean_s = idle_s / (1 - busiest) if busiest < 1 else math.inf
    waiting = demand.arrivals_per_s * (mean_s + decode.whole.now.wait_mean_s)
    return TwoStagePlan(
        prefill=prefill,
        decode=decode,
        transfer=TransferPlan(
            bytes_per_request=bytes_each,
            idle_s=idle_s,
            mean_s=mean_s,
            waiting_requests=waiting,
            waiting_bytes=waiting * bytes_each / prefill.whole.engines,
            first_token_s=prefill.whole.now.wait_mean_s
            + prefill.whole.now.service_s
            + mean_s
            + decode.whole.now.wait_mean_s
            + decode.whole.now.service_s / demand.output_tokens,
        ),
    )


def _stage(
    demand: StagedDemand,
    work: tuple[StageEngine, float],
    engines: int | None,
    cargo: tuple[KvTransfer, float],
    promise: WaitPromise,
) -> StagePlan:
    """``work``: an engine, and the tokens that it computes of a request. ``cargo``: the link, and bytes on it."""
    (engine, tokens), (transfer, bytes_each) = work, cargo
    link_per_s = transfer.most_load * transfer.bandwidth_bytes_per_s
    needs = StageNeeds(
        by_slots=fewest_servers(
            demand.arrivals_per_s,
            engine.service_s(tokens),
            patience_s=promise.wait_s,
            late=promise.late,
            each=engine.slots,
        ),
        by_link=max(1, math.ceil(demand.arrivals_per_s * bytes_each / link_per_s)),
    )
    count = needs.engines + 1 if engines is None else engines
    if count < 1:
        raise PlanError(f"{count} engines: need at least one of each stage")
    return StagePlan(
        needs=needs,
        whole=_room(count, demand, work, cargo, promise),
        without_one=_room(count - 1, demand, work, cargo, promise),
    )


def _room(
    engines: int,
    demand: StagedDemand,
    work: tuple[StageEngine, float],
    cargo: tuple[KvTransfer, float],
    promise: WaitPromise,
) -> StageRoom:
    (engine, tokens), (transfer, bytes_each) = work, cargo
    pool = uniform_engines(
        engines=max(1, engines),
        slots=engine.slots,
        service_s=engine.service_s(tokens),
        arrivals_per_s=demand.arrivals_per_s,
    )
    pool = pool if engines else replace(pool, engines=())
    link_per_s = engines * transfer.bandwidth_bytes_per_s
    most = min(most_arrivals_kept(pool, promise), transfer.most_load * link_per_s / bytes_each)
    asked = demand.arrivals_per_s
    return StageRoom(
        engines=engines,
        now=pool_outcome(pool, patience_s=promise.wait_s),
        link_load=asked * bytes_each / link_per_s if engines else math.inf,
        most_arrivals_per_s=most,
        head_room=most / asked - 1 if asked else math.inf,
    )
