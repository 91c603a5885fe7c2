"""Which places in the policy files a resource came from, so that a refusal by Envoy can name them."""

from collections.abc import Iterable

from policies.model import PolicySet


def cluster_origins(policies: PolicySet, pool: str) -> tuple[str, ...]:
    """Places of what the cluster of a pool was made from: its policies, the winning one first, then the pool."""
    layers = reversed(policies.layers.get(pool, ()))
    return _places(policies, [*(("ResiliencePolicy", name) for name in layers), ("EnginePool", pool)])


def pool_origins(policies: PolicySet, pool: str) -> tuple[str, ...]:
    """Place of a pool."""
    return _places(policies, [("EnginePool", pool)])


def route_origins(policies: PolicySet, routes: Iterable[str]) -> tuple[str, ...]:
    """Places of these routes."""
    return _places(policies, [("ModelRoute", route) for route in routes])


def secret_origins(policies: PolicySet, pools: Iterable[str]) -> tuple[str, ...]:
    """Places at which these pools name a secret."""
    found = (policies.origin("EnginePool", pool, "spec.tls.secret") for pool in pools)
    return tuple(dict.fromkeys(str(origin) for origin in found if origin is not None))


def _places(policies: PolicySet, documents: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    found = (policies.origin(kind, name) for kind, name in documents)
    return tuple(dict.fromkeys(str(origin) for origin in found if origin is not None))
