"""State of each policy document in the cluster: input of its status."""

from dataclasses import dataclass
from typing import Final

from policies.findings import PolicyError

ACCEPTED: Final = "Accepted"
"""Status condition: whether the latest spec is in force."""

_SHOWN: Final = 10


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

    @property
    def rejection(self) -> str:
        """What is served instead of the latest spec, and its errors; empty if it is in force."""
        if not self.problems:
            return ""
        sentences = [f"{error.path or self.kind}: {error.message}" for error in self.problems[:_SHOWN]]
        more = len(self.problems) - len(sentences)
        if more:
            sentences.append(f"and {more} more")
        instead = "the last accepted spec is served" if self.serving else "it is not served"
        return f"{instead}; " + "; ".join(sentences)
