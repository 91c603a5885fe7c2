"""Which prefill engines Envoy may name to the engines of a decode pool.

A decode engine stands behind a routing side-car. The side-car reads ``x-prefiller-host-port``, lets the engine
there compute the prompt, and gives the KV cache to its own engine. Without the header its engine prefills itself.

Each decode endpoint carries the list of prefill engines that may be named to it, with weights. Two filters in the
cluster of the decode pool (``prefill_filters``) draw one of the list for each try, after Envoy has chosen the
decode engine. So a list changes with the endpoints, hot, and a try on another decode engine draws again.

An engine is on no list while it is ejected, draining, kept in rotation by the capacity floor alone, or full.
Unlike a decode engine a bad prefill engine is never better than none: without the header requests are served as
well.

Lists follow zones as far as capacity allows: the decode engines of a zone use the prefill engines there; if these
are a smaller part of all than the decode engines are, the rest goes to zones with more.

Source: llm-d-router, pkg/sidecar/proxy (the header, and what the side-car does); docs/adr/0042-remote-prefill.md.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from policies.model import PolicySet
from policies.remote_prefill import Stage
from xds_server.decide.admission.pool_limit import pool_ceiling
from xds_server.decide.decisions import Decisions, EngineCapacity, Health
from xds_server.model.fleet import Engine, EngineId, Fleet

PREFILLER_HEADER: Final = "x-prefiller-host-port"
"""What llm-d's routing side-car reads. Source: llm-d-router, pkg/common/routing, ``PrefillEndpointHeader``."""

PREFILLERS_LABEL: Final = "switchgear.dev/prefillers"
"""Endpoint label with the list: ``ADDRESS=WEIGHT``, joined by commas."""

MOST_PREFILLERS: Final = 16
"""Longest list. Each pair of engines that share a KV cache opens a connection, and each push carries the lists."""

_FINENESS: Final = 100
"""Largest weight of a list."""

NO_LISTS: Final[Mapping[EngineId, str]] = MappingProxyType({})


class PrefillState(StrEnum):
    """Whether an engine of a prefill pool is named to decode engines, or why not."""

    NAMED = "named"
    EJECTED = "ejected"
    DRAINING = "draining"
    FLOOR = "floor"  # kept in rotation by the capacity floor alone
    FULL = "full"
    UNWEIGHTED = "unweighted"  # weight 0, or no traffic yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefiller:
    """A prefill engine: its weight among its peers, or, if it has none, why it is not named."""

    engine: Engine
    weight: float
    why_not: str = ""
    state: PrefillState = PrefillState.NAMED

    @property
    def address(self) -> str:
        """What the side-car connects to."""
        host = self.engine.address
        return f"[{host}]:{self.engine.port}" if ":" in host else f"{host}:{self.engine.port}"


def prefill_pool(policies: PolicySet, pool: str) -> str:
    """The pool that prefills for this decode pool; empty without one. The loader lets no two routes disagree."""
    for name in sorted(policies.routes):
        spec = policies.routes[name].spec
        if spec.prefill is not None and any(share.pool == pool for share in spec.pools):
            return spec.prefill.pool
    return ""


def decode_pools(policies: PolicySet) -> Mapping[str, str]:
    """All pools with stage decode, and the pool that prefills for each; empty for none."""
    return {
        name: prefill_pool(policies, name)
        for name, pool in policies.pools.items()
        if pool.spec.stage is Stage.DECODE
    }


def prefillers(policies: PolicySet, fleet: Fleet, decisions: Decisions, pool: str) -> tuple[Prefiller, ...]:
    """The engines of this prefill pool, in policy order."""
    decided = decisions.pools.get(pool)
    spec, limits = policies.pools[pool].spec, policies.effective[pool].limits
    factors = {} if decided is None else decided.weight_factors
    ramps = {} if decided is None else decided.ramps
    admission = None if decided is None else decided.admission
    capacities = {} if admission is None else admission.capacities
    found = []
    for engine in fleet.pools.get(pool, ()):
        decision = decisions.engines.get(engine.id)
        declared = EngineCapacity(slots=engine.slots, service_s=spec.service_time, source="")
        capacity = capacities.get(engine.id, declared)
        most, _ = pool_ceiling(limits, capacity.service_s, capacity.slots)
        in_flight = None if engine.report is None else engine.report.requests_in_flight
        why_not, percent, state = "", 100.0, PrefillState.NAMED
        if decision is not None:
            percent = 100.0 if decision.paced else decision.traffic_percent
            if decision.health is not Health.HEALTHY:
                state = PrefillState.DRAINING if decision.health is Health.DRAINING else PrefillState.EJECTED
                why_not = state.value
            elif decision.floor:
                why_not, state = "kept in rotation by the capacity floor alone", PrefillState.FLOOR
        if not why_not and in_flight is not None and in_flight >= most and limits.max_concurrent is None:
            why_not, state = f"full: {in_flight} requests in flight (limit {most})", PrefillState.FULL
        if (ramp := ramps.get(engine.id)) is not None:
            percent = min(percent, ramp.percent)
        weight = engine.weight * engine.slots * factors.get(engine.id, 1.0) * percent / 100
        if not why_not and weight <= 0:
            state = PrefillState.UNWEIGHTED
        found.append(Prefiller(engine=engine, weight=0.0 if why_not else weight, why_not=why_not, state=state))
    return tuple(found)


def prefiller_lists(
    decoders: Sequence[Engine], decisions: Decisions, found: Iterable[Prefiller]
) -> Mapping[EngineId, str]:
    """The list of each decode engine; engines without one are absent.

    Only engines of its region: a prompt stays where ``allowedRegions`` lets it be decoded. If only a part of the
    requests gets a name, an entry without address has the weight of the others.
    """
    decided = decisions.pools.get(decoders[0].id.pool) if decoders else None
    named_percent = 100.0 if decided is None or decided.prefill is None else decided.prefill.named_percent
    lists: dict[EngineId, str] = {}
    by_region: dict[str, list[Prefiller]] = {}
    for one in found:
        if one.weight > 0:
            by_region.setdefault(one.engine.region, []).append(one)
    for region, usable in by_region.items():
        there = [engine for engine in decoders if engine.region == region]
        shares = _zone_shares(there, decisions, usable)
        for engine in there:
            weights = [(one, one.weight * shares[engine.zone][one.engine.zone]) for one in usable]
            lists[engine.id] = _list_of(engine.id, weights, named_percent)
    return lists


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedShare:
    """How a decode pool names one prefill engine.

    ``decoders`` of ``all_decoders`` engines in rotation have it on their lists; by weights and slots it gets
    ``percent`` of the requests of the pool for which an engine is named.
    """

    decoders: int
    all_decoders: int
    percent: float


def named_shares(
    decoders: Sequence[Engine], decisions: Decisions, found: Sequence[Prefiller]
) -> Mapping[EngineId, NamedShare]:
    """How the engines of a decode pool name each of these prefill engines."""
    ready = [engine for engine in decoders if _in_rotation(engine, decisions)]
    names = {one.address: one.engine.id for one in found}
    lists = prefiller_lists(ready, decisions, found)
    slots = sum(engine.slots for engine in ready if lists.get(engine.id))
    counts, shares = dict.fromkeys(names.values(), 0), dict.fromkeys(names.values(), 0.0)
    for engine in ready:
        entries = [(address, weight) for address, weight in parsed_list(lists.get(engine.id, "")) if address]
        total = sum(weight for _, weight in entries)
        for address, weight in entries:
            counts[names[address]] += 1
            shares[names[address]] += 100 * engine.slots / slots * weight / total
    return {
        name: NamedShare(decoders=count, all_decoders=len(ready), percent=shares[name])
        for name, count in counts.items()
    }


def parsed_list(text: str) -> list[tuple[str, int]]:
    """Addresses of a list, with their weights; an empty one stands for no engine."""
    entries = (one.rpartition("=") for one in text.split(",") if one)
    return [(address, int(weight)) for address, _, weight in entries]


def _zone_shares(
    decoders: Sequence[Engine], decisions: Decisions, usable: Sequence[Prefiller]
) -> Mapping[str, Mapping[str, float]]:
    """Factor of the weights of a prefill zone, for each decode zone.

    Zones exchange what they lack: with parts ``d`` of the decode slots and ``p`` of the prefill weights a zone
    keeps ``min(d, p)`` at home, and zones with ``d > p`` use what others with ``p > d`` have left. So every
    prefill engine gets its share of the work, and as little of it as possible crosses zones.
    """
    decode = _parts((one.zone, one.slots) for one in decoders if _in_rotation(one, decisions))
    prefill = _parts((one.engine.zone, one.weight) for one in usable)
    left = {zone: max(0.0, part - decode.get(zone, 0.0)) for zone, part in prefill.items()}
    whole = sum(left.values())
    shares: dict[str, Mapping[str, float]] = {}
    for zone in {one.zone for one in decoders}:
        own, wanted = prefill.get(zone, 0.0), decode.get(zone, 0.0)
        home = min(1.0, own / wanted) if wanted else float(bool(own))
        away = 0.0 if whole == 0 else (1 - home) / whole
        # The share of a zone over its part of the weights is the factor of each weight there.
        shares[zone] = {
            other: (home * (other == zone) + away * left[other]) / part for other, part in prefill.items()
        }
    return shares


def _parts(slots: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Each zone's part of the whole."""
    found: dict[str, float] = {}
    for zone, number in slots:
        found[zone] = found.get(zone, 0.0) + number
    whole = sum(found.values())
    return {zone: number / whole for zone, number in found.items()}


def _in_rotation(engine: Engine, decisions: Decisions) -> bool:
    decision = decisions.engines.get(engine.id)
    return decision is None or decision.health is Health.HEALTHY


def _list_of(decoder: EngineId, weights: Sequence[tuple[Prefiller, float]], named_percent: float) -> str:
    """The list of one decode engine, heaviest weight 100, in the order of addresses.

    Of more than ``MOST_PREFILLERS`` it gets some, drawn by weight and by the names of both engines. So another
    decode engine gets others, and engines that come or go change few lists.
    """
    some = [(one, weight) for one, weight in weights if weight > 0]
    if len(some) > MOST_PREFILLERS:
        some = sorted(some, key=lambda one: _rank(decoder, *one))[:MOST_PREFILLERS]
        # The draw followed the weights.
        some = [(one, 1.0) for one, _ in some]
    heaviest = max((weight for _, weight in some), default=1.0)
    shares = [(one.address, max(1, round(_FINENESS * weight / heaviest))) for one, weight in some]
    if shares and named_percent < 100:
        whole = sum(weight for _, weight in shares)
        shares.append(("", round(whole * (100 - named_percent) / named_percent)))
    return ",".join(sorted(f"{address}={weight}" for address, weight in shares))


def _rank(decoder: EngineId, one: Prefiller, weight: float) -> float:
    """Weighted rendezvous hashing: the lowest ranks are a draw by weight without replacement."""
    digest = hashlib.blake2b(f"{decoder}\n{one.engine.id}".encode(), digest_size=8).digest()
    uniform = (int.from_bytes(digest) + 1) / (2**64 + 1)
    return -math.log(uniform) / weight
