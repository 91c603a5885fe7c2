"""Policies made to fit a lab: the operator's words with the lab's engines, and times in proportion to them. Pure.

A lab has few engines on loopback, whose requests take a fraction of a second. So the pool under test gets the
lab's engines, whatever its file says of addresses, slots and speed, and what the policies say of the times of
*requests* (waits, timeouts, hedging) is divided by how many times faster the lab's engines are. What they say of
*detection* (probes, cooldowns, connecting) stays: a hang is found as fast as it would be in life.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from chaos.scenario.experiment_plan import EnginePlacement, Experiment
from chaos.testbed.request_shape import RequestShape, RequestShapeError, request_shape
from policies.model import PolicySet
from policies.pool import EnginePool
from policies.resilience import ResilienceSpec
from policies.route import ModelRoute

MOST_TIMES_FASTER: Final = 8.0
"""Than its policies expect an engine is made at most: at more, detection would be slow beside everything else."""

SIDE_ENGINES: Final = 2
SIDE_SLOTS: Final = 4
"""Of each engine of a pool that is not under test."""


class PolicyFitError(Exception):
    """These policies cannot be rehearsed; the message says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SidePool:
    """A pool that is not under test and has some engines all the same, because a route reaches it."""

    name: str
    model: str
    engines: tuple[EnginePlacement, ...]
    service_s: float
    gate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFit:
    """Policies and an experiment that go together.

    ``experiment`` is slower than the one asked for where the policies expect so much slower engines.
    ``max_wait_s`` is what the policies let a request wait, in the lab's time. ``ports`` are those of the listeners
    that are kept, as the operator wrote them; ``port`` is the one to ask.
    """

    policies: PolicySet
    experiment: Experiment
    pool: str
    model: str
    gate: bool
    time_scale: float
    max_wait_s: float
    side_pools: tuple[SidePool, ...]
    routes: tuple[ModelRoute, ...]
    shape: RequestShape
    port: int
    ports: tuple[int, ...]


def policy_fit(
    policies: PolicySet, experiment: Experiment, *, pool: str | None = None, model: str | None = None
) -> PolicyFit:
    """How these policies are rehearsed; FittingError when they cannot be.

    ``pool`` is the one under test; by default the first by name that a route sends most of its requests to.
    ``model`` is what the engines answer to, where that cannot be chosen.
    """
    tested = _tested(policies, pool)
    routes = tuple(one for one in policies.routes.values() if _sends_to(one, tested))
    said = policies.pools[tested].spec
    fitted = _slowed(experiment, said.service_time)
    scale = max(1.0, said.service_time / fitted.service_s)
    topology = experiment.spec.topology
    # The lab starts real engines with the gate.
    gate = True if topology.engine == "vllm" else topology.first_token_gate
    streaming = _sorts(experiment)
    try:
        route, asked = request_shape(routes, tested, streaming)
    except RequestShapeError as problem:
        raise PolicyFitError(str(problem)) from problem
    names = {said.model: model or said.model}
    others = sorted({name for one in routes for name in _reached(one)} - {tested})
    return PolicyFit(
        policies=policies,
        experiment=fitted,
        pool=tested,
        model=names[said.model],
        gate=said.first_token_gate if gate is None else gate,
        time_scale=scale,
        max_wait_s=_wait_s(policies.effective[tested], policies.pools[tested], fitted, scale),
        side_pools=tuple(_side(policies.pools[name], scale, fitted) for name in others),
        routes=tuple(_renamed(one, names) for one in routes),
        shape=replace(asked, model=names.get(asked.model or said.model, asked.model)),
        port=route.spec.listener.port,
        ports=tuple(sorted({one.spec.listener.port for one in routes})),
    )


def _tested(policies: PolicySet, wanted: str | None) -> str:
    if wanted is None:
        most = {max(one.spec.pools, key=lambda share: share.weight).pool for one in policies.routes.values()}
        if not most:
            raise PolicyFitError("there is no ModelRoute: nothing is sent to any pool")
        return min(most)
    if wanted not in policies.pools:
        raise PolicyFitError(f"there is no pool {wanted!r}; there are {', '.join(sorted(policies.pools))}")
    if not any(_sends_to(one, wanted) for one in policies.routes.values()):
        raise PolicyFitError(f"no route sends anything to pool {wanted}; as a mere fallback it is not tested")
    return wanted


def _sends_to(route: ModelRoute, pool: str) -> bool:
    return any(one.pool == pool and one.weight > 0 for one in route.spec.pools)


def _reached(route: ModelRoute) -> Iterator[str]:
    yield from (one.pool for one in route.spec.pools)
    if route.spec.fallback is not None:
        yield route.spec.fallback


def _sorts(experiment: Experiment) -> frozenset[bool]:
    percent = experiment.spec.load.streaming_percent
    return frozenset({True} if percent >= 100 else {False} if percent <= 0 else {True, False})


def _slowed(experiment: Experiment, declared_s: float) -> Experiment:
    """The experiment, with slower engines where its author left their speed open and policies expect slow ones.

    Requests come as much more rarely, also where their rate is said: the load is a share of what engines can do.
    """
    topology = experiment.spec.topology
    service_s = declared_s / MOST_TIMES_FASTER
    left_open = "service_time" not in topology.model_fields_set and topology.engine == "simulated"
    if not left_open or service_s <= experiment.service_s:
        return experiment
    slower = service_s / experiment.service_s
    return replace(experiment, service_s=service_s, rate_per_s=experiment.rate_per_s / slower)


def slots_ratio(pool: EnginePool, experiment: Experiment) -> float:
    """The lab's slots per slot that the pool has in life; 1 where it names no engines."""
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


def _side(pool: EnginePool, scale: float, experiment: Experiment) -> SidePool:
    zones = experiment.spec.topology.zones
    return SidePool(
        name=pool.metadata.name,
        model=pool.spec.model,
        engines=tuple(
            EnginePlacement(name=f"{pool.metadata.name}-{place}", zone=zones[place % len(zones)], slots=SIDE_SLOTS)
            for place in range(SIDE_ENGINES)
        ),
        service_s=pool.spec.service_time / scale,
        gate=pool.spec.first_token_gate,
    )


def _renamed(route: ModelRoute, names: Mapping[str, str]) -> ModelRoute:
    model = route.spec.match.model
    if model is None or names.get(model, model) == model:
        return route
    match = route.spec.match.model_copy(update={"model": names[model]})
    return route.model_copy(update={"spec": route.spec.model_copy(update={"match": match})})
