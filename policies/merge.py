"""The effective policy of a pool: layers laid over each other, field by field.

Built-in defaults first, then the policy named ``default``, then the policy that lists the pool. Only fields that
somebody wrote override; a list replaces a list.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from policies.document import Spec
from policies.model import PolicySet
from policies.resilience import DEFAULT, ResiliencePolicy, ResilienceSpec

_S = TypeVar("_S", bound=Spec)


def overlay(below: _S, above: _S) -> _S:
    """``below`` with every field that was written in ``above``."""
    changes: dict[str, object] = {}
    for name in above.model_fields_set:
        value, covered = getattr(above, name), getattr(below, name)
        changes[name] = (
            overlay(covered, value) if isinstance(value, Spec) and type(value) is type(covered) else value
        )
    return below.model_copy(update=changes)


def layers(pools: Iterable[str], policies: Mapping[str, ResiliencePolicy]) -> Mapping[str, tuple[str, ...]]:
    """For each pool the names of the policies that are for it, the one that wins last."""
    below = (DEFAULT,) if DEFAULT in policies else ()
    own = {pool: name for name, policy in policies.items() if name != DEFAULT for pool in policy.spec.pools}
    return {pool: (*below, own[pool]) if pool in own else below for pool in pools}


def effective(names: Iterable[str], policies: Mapping[str, ResiliencePolicy]) -> ResilienceSpec:
    """What these policies, laid over the built-in defaults in this order, come to."""
    spec = ResilienceSpec()
    for name in names:
        spec = overlay(spec, policies[name].spec)
    # Whom a policy is for is not a setting of the pool.
    return spec.model_copy(update={"pools": ()})


def setter(policies: PolicySet, pool: str, path: str) -> str | None:
    """Name of the policy that set ``path`` (``spec.limits.maxWait``) for a pool; None: the built-in default."""
    for name in reversed(policies.layers.get(pool, ())):
        if f"ResiliencePolicy/{name}.{path}" in policies.origins:
            return name
    return None
