"""Origins of resources in the policy files, so that Envoy's refusals can name them."""

from collections.abc import Iterable

from policies.model import PolicySet


def cluster_origins(policies: PolicySet, pool: str) -> tuple[str, ...]:
    """Origins of a pool's cluster: its policies, the winning one first, then the pool."""
    layers = reversed(policies.layers.get(pool, ()))
    return _places(policies, [*(("ResiliencePolicy", name) for name in layers), ("EnginePool", pool)])


def pool_origins(policies: PolicySet, pool: str) -> tuple[str, ...]:
    """Origin of a pool."""
    return _places(policies, [("EnginePool", pool)])


def route_origins(policies: PolicySet, routes: Iterable[str]) -> tuple[str, ...]:
    """Origins of these routes."""
    return _places(policies, [("ModelRoute", route) for route in routes])


def secret_origins(policies: PolicySet, fields: Iterable[tuple[str, str, str]]) -> tuple[str, ...]:
    """Origins of the secret names in these fields: kind and name of the document, and path."""
    found = (policies.origin(kind, name, path) for kind, name, path in fields)
    return tuple(dict.fromkeys(str(origin) for origin in found if origin is not None))


def _places(policies: PolicySet, documents: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    found = (policies.origin(kind, name) for kind, name in documents)
    return tuple(dict.fromkeys(str(origin) for origin in found if origin is not None))
