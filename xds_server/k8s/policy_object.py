"""What became of each policy document that the cluster holds: what status is written of."""

from dataclasses import dataclass
from typing import Final

from policies.findings import PolicyError

ACCEPTED: Final = "Accepted"
"""The condition of a status that says whether the newest spec of an object is in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyObject:
    """One EnginePool, ModelRoute or ResiliencePolicy of the cluster.

    ``problems`` are why its newest spec is not served; ``serving`` says whether it, or an earlier one in its
    place, is. ``last_accepted`` is the earlier one's spec as JSON, for whoever starts without having seen it.
    ``file`` is its name among the policy files (``NAMESPACE/KIND/NAME``), as origins and problems have it.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    file: str
    problems: tuple[PolicyError, ...] = ()
    serving: bool = True
    last_accepted: str = ""
