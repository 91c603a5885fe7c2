"""Fit policies to a lab: the operator's policies with the lab's engines and scaled request times. Pure.

A lab has few engines on loopback, and requests take a fraction of a second. So the pool under test gets the lab's
engines instead of its own addresses, slots and speed, and *request* times (waits, timeouts, hedging) are divided
by the lab engines' speed-up. *Detection* times (probes, cooldowns, connecting) stay: a hang is detected as fast as
in production.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from chaos.scenario.experiment_plan import EnginePlacement, Experiment
from chaos.scenario.placement import zone_regions
from chaos.testbed.request_shape import RequestShape, RequestShapeError, request_shape
from chaos.testbed.service_costs import PREFILL_SHARE
from policies.affinity import Affinity
from policies.listener import Listener
from policies.model import PolicySet
from policies.pool import EnginePool
from policies.remote_prefill import Stage
from policies.resilience import ResilienceSpec
from policies.route import ModelRoute

MOST_TIMES_FASTER: Final = 8.0
"""Maximum speed-up of an engine compared with its policies; beyond it, detection would be too slow in relation."""

SIDE_ENGINES: Final = 2
SIDE_SLOTS: Final = 4
"""Slots of each engine of a pool not under test."""


class PolicyFitError(Exception):
    """The policies cannot be rehearsed; the message has the cause and the fix."""


class MissingPoolError(PolicyFitError):
    """The scenario has fallback pools or a prefill pool that the policies do not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SidePool:
    """A pool not under test that gets some engines, because a route uses it.

    A fallback or prefill pool of the tested route gets those of the scenario's topology, if it has any.
    ``service_s`` is the time of a request of the load, of a prefill pool that of a mean prompt; its own requests
    have ``times_tokens`` as many tokens.
    """

    name: str
    model: str
    engines: tuple[EnginePlacement, ...]
    service_s: float
    gate: bool
    stage: Stage | None = None
    times_tokens: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFit:
    """Policies and an experiment fitted to each other.

    ``experiment`` has slower engines if the policies expect much slower ones. ``max_wait_s`` is the policies'
    longest queueing time, in lab time. ``ports`` are the kept listener ports as the operator wrote them; requests
    go to ``port``, that of ``listener``.
    """

    policies: PolicySet
    experiment: Experiment
    pool: str
    model: str
    gate: bool
    stage: Stage | None
    time_scale: float
    max_wait_s: float
    side_pools: tuple[SidePool, ...]
    routes: tuple[ModelRoute, ...]
    shape: RequestShape
    port: int
    ports: tuple[int, ...]
    listener: Listener
    affinity: Affinity | None = None


def policy_fit(
    policies: PolicySet, experiment: Experiment, *, pool: str | None = None, model: str | None = None
) -> PolicyFit:
    """Fit the policies; raises PolicyFitError.

    ``pool`` is the one under test; default: the first by name that gets most of a route's requests. ``model`` is
    the engines' model name, if fixed.
    """
    tested = _tested(policies, pool)
    direct = tuple(one for one in policies.routes.values() if _sends_to(one, tested))
    routes = (*direct, *_of_large_requests(policies, direct))
    said = policies.pools[tested].spec
    fitted = _slowed(experiment, said.service_time)
    scale = max(1.0, said.service_time / fitted.service_s)
    topology = experiment.spec.topology
    # The lab starts real engines with the first-token gate.
    gate = True if topology.engine == "vllm" else topology.first_token_gate
    streaming = _sorts(experiment)
    try:
        route, asked = request_shape(direct, tested, streaming)
    except RequestShapeError as problem:
        raise PolicyFitError(str(problem)) from problem
    if route.spec.match.tokens_above is not None:
        routes = direct = _for_any_size(direct, route.spec.match.tokens_above)
        route = next(one for one in direct if one.metadata.name == route.metadata.name)
    adapter = experiment.spec.load.adapter
    chain = _chain(route, experiment)
    chain |= _prefill(route, experiment)
    names = {said.model: model or said.model}
    large = {share.pool for one in _of_large_requests(policies, direct) for share in one.spec.pools}
    others = sorted({name for one in routes for name in _reached(one)} - {tested})
    return PolicyFit(
        policies=policies,
        experiment=fitted,
        pool=tested,
        model=names[said.model],
        gate=said.first_token_gate if gate is None else gate,
        stage=said.stage,
        time_scale=scale,
        max_wait_s=_wait_s(policies.effective[tested], policies.pools[tested], fitted, scale),
        side_pools=tuple(
            _side(policies.pools[name], scale, fitted, chain.get(name), large=name in large) for name in others
        ),
        routes=tuple(_renamed(_for_adapter(one, adapter), names) for one in routes),
        shape=replace(asked, model=adapter or names.get(asked.model or said.model, asked.model)),
        port=route.spec.listener.port,
        listener=route.spec.listener,
        affinity=route.spec.affinity,
        ports=tuple(sorted({one.spec.listener.port for one in routes})),
    )


def _tested(policies: PolicySet, wanted: str | None) -> str:
    if wanted is None:
        most = {max(one.spec.pools, key=lambda share: share.weight).pool for one in policies.routes.values()}
        if not most:
            raise PolicyFitError("no ModelRoute, so no pool gets requests; add one")
        return min(most)
    if wanted not in policies.pools:
        raise PolicyFitError(f"unknown pool {wanted!r}; use one of {', '.join(sorted(policies.pools))}")
    if not any(_sends_to(one, wanted) for one in policies.routes.values()):
        raise PolicyFitError(
            f"no route sends requests to pool {wanted}; a pool for fallback or prefill alone cannot be tested"
        )
    return wanted


def _sends_to(route: ModelRoute, pool: str) -> bool:
    return any(one.pool == pool and one.weight > 0 for one in route.spec.pools)


def _for_any_size(direct: Sequence[ModelRoute], above: int) -> tuple[ModelRoute, ...]:
    """The routes for requests of this size, if the pool gets no smaller ones: the load stands for these."""
    return tuple(
        one.model_copy(
            update={
                "spec": one.spec.model_copy(
                    update={"match": one.spec.match.model_copy(update={"tokens_above": None})}
                )
            }
        )
        for one in direct
        if one.spec.match.tokens_above == above
    )


def _of_large_requests(policies: PolicySet, direct: Sequence[ModelRoute]) -> Iterator[ModelRoute]:
    """Routes that take large requests of these routes' ports to other pools."""
    ports = {one.spec.listener.port for one in direct}
    for route in policies.routes.values():
        sized = route.spec.match.tokens_above is not None
        if sized and route.spec.listener.port in ports and route not in direct:
            yield route


def _reached(route: ModelRoute) -> Iterator[str]:
    yield from (one.pool for one in route.spec.pools)
    yield from route.spec.fallbacks
    if route.spec.prefill is not None:
        yield route.spec.prefill.pool


def _sorts(experiment: Experiment) -> frozenset[bool]:
    percent = experiment.spec.load.streaming_percent
    return frozenset({True} if percent >= 100 else {False} if percent <= 0 else {True, False})


def _slowed(experiment: Experiment, declared_s: float) -> Experiment:
    """The experiment, with slower engines if its serviceTime is not set and the policies expect slow ones.

    The request rate drops by the same factor, also with perSecond: the load stays the same share of capacity.
    """
    topology = experiment.spec.topology
    service_s = declared_s / MOST_TIMES_FASTER
    left_open = "service_time" not in topology.model_fields_set and topology.engine == "simulated"
    if not left_open or service_s <= experiment.service_s:
        return experiment
    slower = service_s / experiment.service_s
    return replace(experiment, service_s=service_s, rate_per_s=experiment.rate_per_s / slower)


def slots_ratio(pool: EnginePool, experiment: Experiment) -> float:
    """Lab slots per production slot of the pool; 1 if it lists no engines."""
    declared = sum(one.slots or pool.spec.slots_per_engine for one in pool.spec.endpoints)
    return experiment.slots / declared if declared else 1.0


def _wait_s(spec: ResilienceSpec, pool: EnginePool, experiment: Experiment, scale: float) -> float:
    limits = spec.limits
    if limits.max_concurrent is not None:
        per_slot = limits.max_concurrent * slots_ratio(pool, experiment) / experiment.slots
    elif limits.concurrent_per_slot is not None:
        per_slot = limits.concurrent_per_slot
    else:
        return limits.max_wait / scale
    return max(0.0, per_slot - 1.0) * experiment.service_s


def _prefill(route: ModelRoute, experiment: Experiment) -> dict[str, tuple[EnginePlacement, ...]]:
    """The scenario's prefill engines by pool; raises MissingPoolError."""
    if not experiment.prefill:
        return {}
    if route.spec.prefill is None:
        raise MissingPoolError(
            f"scenario {experiment.name} needs a prefill pool, and route {route.metadata.name} has none; "
            "set its prefill"
        )
    return {route.spec.prefill.pool: experiment.prefill}


def _chain(route: ModelRoute, experiment: Experiment) -> dict[str, tuple[EnginePlacement, ...]]:
    """The scenario's fallback engines by pool; raises MissingPoolError."""
    wanted, there = len(experiment.fallbacks), len(route.spec.fallbacks)
    if there < wanted:
        pools = "1 fallback pool" if wanted == 1 else f"{wanted} fallback pools"
        raise MissingPoolError(
            f"scenario {experiment.name} needs {pools}, and route {route.metadata.name} has {there or 'none'}; "
            "add pools to its fallbacks"
        )
    return dict(zip(route.spec.fallbacks, experiment.fallbacks, strict=False))


def _side(
    pool: EnginePool,
    scale: float,
    experiment: Experiment,
    engines: tuple[EnginePlacement, ...] | None,
    *,
    large: bool,
) -> SidePool:
    topology = experiment.spec.topology
    zones, regions = topology.zones, zone_regions(topology)
    usual = (
        EnginePlacement(
            name=f"{pool.metadata.name}-{place}", zone=zone, slots=SIDE_SLOTS, region=regions.get(zone, "")
        )
        for place in range(SIDE_ENGINES)
        for zone in (zones[place % len(zones)],)
    )
    prefills, times = pool.spec.stage is Stage.PREFILL, experiment.spec.load.largest_times
    # Engines for large requests are as fast as the others.
    usual_s = experiment.service_s if large and times > 1 else pool.spec.service_time / scale
    return SidePool(
        name=pool.metadata.name,
        model=pool.spec.model,
        engines=tuple(usual) if engines is None else engines,
        service_s=PREFILL_SHARE * experiment.service_s if prefills else usual_s,
        times_tokens=times if large else 1.0,
        gate=pool.spec.first_token_gate,
        stage=pool.spec.stage,
    )


def _for_adapter(route: ModelRoute, adapter: str | None) -> ModelRoute:
    """The route, for requests that ask for this adapter, if any."""
    if adapter is None:
        return route
    match = route.spec.match.model_copy(update={"model": adapter})
    changes: dict[str, object] = {"match": match, "adapter": True}
    # As sent to Envoy: an adapter and prefill exclude each other.
    return route.model_copy(update={"spec": route.spec.model_copy(update={**changes, "prefill": None})})


def _renamed(route: ModelRoute, names: Mapping[str, str]) -> ModelRoute:
    model = route.spec.match.model
    if model is None or names.get(model, model) == model:
        return route
    match = route.spec.match.model_copy(update={"model": names[model]})
    return route.model_copy(update={"spec": route.spec.model_copy(update={"match": match})})
