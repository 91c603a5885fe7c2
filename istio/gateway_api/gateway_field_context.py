"""Context that decides the outcome of a field in the Gateway API."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from istio.gateway_api.backends import PoolBackends
from istio.gateway_api.gateway_objects import GatewayTarget
from policies.fidelity import FieldOutcome
from policies.model import PolicySet


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayFieldContext:
    """The name of a document (or of a pool, for effective values), and the objects exported for all of them."""

    policies: PolicySet
    site: GatewayTarget
    backends: Mapping[str, PoolBackends]
    left_out: Mapping[str, str]
    name: str


Judge: TypeAlias = Callable[[GatewayFieldContext], FieldOutcome | None]
"""Another outcome where what the policies say makes one; None keeps what the field declares."""
