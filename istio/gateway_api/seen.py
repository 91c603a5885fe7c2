"""What a judge of fates looks at."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from istio.export.outcome import Outcome
from istio.gateway_api.backends import Backends
from istio.gateway_api.site import Site
from policies.model import PolicySet


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A document, or a pool where what is in force for one is meant, by name; and what came of all of them."""

    policies: PolicySet
    site: Site
    backends: Mapping[str, Backends]
    left_out: Mapping[str, str]
    name: str


Judge: TypeAlias = Callable[[Seen], Outcome | None]
"""Another outcome where what the policies say makes one; None keeps the one of the table."""
