"""Lint: pools that cannot survive the loss of a zone or an engine, and limits without effect."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from policies.findings import Finding
from policies.lints.lint_context import LintContext, PoolRule, SetRule
from policies.merge import setter
from policies.model import PolicySet
from policies.route import PriorityClass

_FULL_PERCENT: Final = 100.0


def _no_zone_to_lose(one: LintContext) -> Iterator[Finding]:
    slots: Counter[str] = Counter()
    for endpoint in one.pool.endpoints:
        slots[endpoint.zone] += endpoint.slots or one.pool.slots_per_engine
    if "" in slots or len(one.pool.endpoints) < 2:
        return  # zones are not set, or the pool has one engine
    zone, most = max(slots.items(), key=lambda item: (item[1], item[0]))
    left = _FULL_PERCENT * (1 - most / one.slots)
    floor = one.spec.breaker.capacity_floor_percent
    if left < floor < _FULL_PERCENT:
        share = "all slots are" if len(slots) == 1 else f"{_FULL_PERCENT - left:.0f} % of the slots are"
        yield one.engines(
            "SG120",
            "spec.endpoints",
            f"{share} in zone {zone}; without it {left:.0f} % remain, below the capacity floor of {floor:g} %",
            "spread the engines over more zones, or add engines in the smaller zones",
        )
    engines = Counter(endpoint.zone for endpoint in one.pool.endpoints)
    alone = sorted(zone for zone, count in engines.items() if count == 1)
    if alone and not one.spec.zones.spill and len(engines) > 1:
        yield one.policy(
            "SG120",
            "spec.zones.spill",
            f"traffic stays in its zone, and zone {alone[0]} has one engine: the zone is down when it fails",
            "set zones.spill: true, or add a second engine to the zone",
        )


def _few_engines(one: LintContext) -> Iterator[Finding]:
    count = len(one.pool.endpoints)
    if one.pool.kubernetes is not None and count < 2:
        return  # the cluster decides how many there are
    if count == 0:
        yield one.engines(
            "SG122", "spec.endpoints", "no engines: every request fails", "list the engines in spec.endpoints"
        )
    elif count == 1:
        yield one.engines(
            "SG121",
            "spec.endpoints",
            "one engine: breaker, retries and hedges cannot help when it fails",
            "add a second engine, or a fallback in its routes",
        )


def _limits_twice(one: LintContext) -> Iterator[Finding]:
    limits = one.spec.limits
    ways = (
        ("spec.limits.maxConcurrent", limits.max_concurrent is not None),
        ("spec.limits.concurrentPerSlot", limits.concurrent_per_slot is not None),
        ("spec.limits.maxWait", True),
    )
    winner = next(path for path, given in ways if given)
    order = (None, *one.policies.layers.get(one.name, ()))
    since = order.index(setter(one.policies, one.name, winner))
    for path, given in ways:
        # A layer below overrides nothing: it was overridden on purpose.
        layer = order.index(setter(one.policies, one.name, path))
        if given and path != winner and layer >= max(since, 1):
            yield one.policy(
                "SG126",
                path,
                f"no effect: {winner} takes precedence",
                f"remove one of the two; {winner}: null unsets the value of a lower layer",
            )


def _unequal_weights(one: LintContext) -> Iterator[Finding]:
    if len({endpoint.weight for endpoint in one.pool.endpoints}) > 1:
        first = one.pool.endpoints[0].weight
        number = next(n for n, endpoint in enumerate(one.pool.endpoints) if endpoint.weight != first)
        yield one.engines(
            "SG128",
            f"spec.endpoints[{number}].weight",
            "engines have unequal weights, so Envoy no longer picks the engine with the fewest requests",
            "set slots for larger engines; use weights only to move traffic by hand",
        )


def _shares(policies: PolicySet) -> Iterator[Finding]:
    classes: dict[str, set[PriorityClass]] = {}
    for route in policies.routes.values():
        for target in route.spec.pools:
            classes.setdefault(target.pool, set()).add(route.spec.priority)
    for pool, used in classes.items():
        priorities = policies.effective[pool].limits.priorities
        interactive, batch = priorities.interactive.share_percent, priorities.batch.share_percent
        total = interactive + batch
        advised = LintContext(
            policies=policies, name=pool, pool=policies.pools[pool].spec, spec=policies.effective[pool]
        )
        contend = len(used) > 1 or all(
            advised.declares(f"spec.limits.priorities.{one}.sharePercent") for one in PriorityClass
        )
        if not contend or total <= _FULL_PERCENT + 0.01:
            continue
        path = "spec.limits.priorities.interactive.sharePercent"
        if setter(policies, pool, path) is None:
            path = "spec.limits.priorities.batch.sharePercent"
        yield advised.policy(
            "SG125",
            path,
            f"interactive {interactive:g} % + batch {batch:g} % = {total:g} %: neither share is guaranteed, "
            f"interactive gets {_FULL_PERCENT * interactive / total:.0f} %",
            f"lower interactive to {_FULL_PERCENT - batch:g}, or batch to {_FULL_PERCENT - interactive:g}",
        )


def _shared_engines(policies: PolicySet) -> Iterator[Finding]:
    first: dict[tuple[str, int], tuple[str, int]] = {}
    for name, pool in policies.pools.items():
        for number, endpoint in enumerate(pool.spec.endpoints):
            other, at = first.setdefault((endpoint.address, endpoint.port), (name, number))
            if other == name:
                continue
            place = policies.origin("EnginePool", other, f"spec.endpoints[{at}]")
            path = f"spec.endpoints[{number}]"
            yield Finding(
                code="SG127",
                origin=policies.origin("EnginePool", name, path),
                path=path,
                message=f"pool {name}: {endpoint.address}:{endpoint.port} is also in pool {other} ({place}): "
                "each pool admits requests as if the engine were its own",
                fix="keep it in one pool; separate requests by routes and priority classes",
            )


CAPACITY_RULES: Final[tuple[PoolRule, ...]] = (
    _no_zone_to_lose,
    _few_engines,
    _limits_twice,
    _unequal_weights,
)
SHARED_RULES: Final[tuple[SetRule, ...]] = (_shares, _shared_engines)
