"""The effective policy of a pool: layers merged field by field.

Built-in defaults first, then the policy named ``default``, then the policy that lists the pool. Only written
fields override; a list replaces a list.
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from policies.document import Spec
from policies.model import PolicySet
from policies.resilience import DEFAULT, ResiliencePolicy, ResilienceSpec

BAD_GATEWAY: Final = 502
"""Status of a routing side-car that cannot reach the prefill engine."""

_S = TypeVar("_S", bound=Spec)


def overlay(below: _S, above: _S) -> _S:
    """``below`` with every field written in ``above``."""
    changes: dict[str, object] = {}
    for name in above.model_fields_set:
        value, covered = getattr(above, name), getattr(below, name)
        changes[name] = (
            overlay(covered, value) if isinstance(value, Spec) and type(value) is type(covered) else value
        )
    return below.model_copy(update=changes)


def layers(pools: Iterable[str], policies: Mapping[str, ResiliencePolicy]) -> Mapping[str, tuple[str, ...]]:
    """The names of the policies of each pool; the last one wins."""
    below = (DEFAULT,) if DEFAULT in policies else ()
    own = {pool: name for name, policy in policies.items() if name != DEFAULT for pool in policy.spec.pools}
    return {pool: (*below, own[pool]) if pool in own else below for pool in pools}


def effective(names: Iterable[str], policies: Mapping[str, ResiliencePolicy]) -> ResilienceSpec:
    """The built-in defaults with these policies merged over them in this order."""
    spec = ResilienceSpec()
    for name in names:
        spec = overlay(spec, policies[name].spec)
    # The list of pools is not a setting of the pool.
    return spec.model_copy(update={"pools": ()})


def of_decode_pool(
    spec: ResilienceSpec, names: Iterable[str], policies: Mapping[str, ResiliencePolicy]
) -> ResilienceSpec:
    """The effective policy of a pool with stage decode: its default ``countStatuses`` has no 502.

    With it the side-car of a healthy decode engine reports a prefill engine that it cannot reach: one dead prefill
    engine would eject every decode engine.
    """
    if any("count_statuses" in policies[name].spec.breaker.model_fields_set for name in names):
        return spec
    counted = tuple(one for one in spec.breaker.count_statuses if one != BAD_GATEWAY)
    return spec.model_copy(update={"breaker": spec.breaker.model_copy(update={"count_statuses": counted})})


def setter(policies: PolicySet, pool: str, path: str) -> str | None:
    """Name of the policy that set ``path`` (``spec.limits.maxWait``) for a pool; None: the built-in default."""
    for name in reversed(policies.layers.get(pool, ())):
        if f"ResiliencePolicy/{name}.{path}" in policies.origins:
            return name
    return None
