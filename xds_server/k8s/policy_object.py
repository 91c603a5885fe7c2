"""State of each policy document in the cluster: input of its status."""

from dataclasses import dataclass
from typing import Final

from policies.findings import PolicyError

ACCEPTED: Final = "Accepted"
"""Status condition: whether the latest spec is in force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyObject:
    """One EnginePool, ModelRoute or ResiliencePolicy of the cluster.

    ``problems``: why the latest spec is not served. ``serving``: whether it or an earlier spec is served.
    ``last_accepted``: the earlier spec as JSON, for a server that starts later. ``file``: its name among the
    policy files (``NAMESPACE/KIND/NAME``), as in origins and problems.
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
