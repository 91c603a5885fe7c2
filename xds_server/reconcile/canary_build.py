"""Builds new policies for canary proxies, next to those served to the rest.

Both builds see all proxies, so each divides limits by all of them: the canary's parts of one and the rest's parts
of the other never exceed the larger total. Both see the same engines and traffic. Engines that only the new
policies have are without reports.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from policies.model import PolicySet
from xds_server.decide.decision_memory import DecisionMemory
from xds_server.model.fleet import Fleet, redeclared
from xds_server.model.policy_state import AcceptedPolicies
from xds_server.model.view import View
from xds_server.reconcile.orchestrator_states import OrchestratorStates
from xds_server.reconcile.pipeline import BuildResult, Pipeline
from xds_server.reconcile.policy_gate import hold_reason


class CanaryBuild:
    """New policies on trial; ``with_canary`` adds their snapshots to those of the rest."""

    def __init__(
        self, accepted: AcceptedPolicies, serving: PolicySet, addressed: Callable[[Fleet], Fleet]
    ) -> None:
        self.accepted = accepted
        self.failure = ""
        """Why the last build failed; empty if it succeeded."""
        self._policies = _sharing(accepted.policies, serving)
        self._serving = serving
        self._addressed = addressed
        self._pipeline = Pipeline()
        self._memory: DecisionMemory | None = None

    def build(self, rest: BuildResult, fleet: Fleet, views: frozenset[View]) -> BuildResult:
        """The build for proxies of these views; ``rest`` is what was built of ``fleet`` for the others."""
        inputs = replace(
            rest.inputs,
            policies=self._policies,
            fleet=self._addressed(redeclared(self._policies, fleet, self._serving)),
            memory=rest.inputs.memory if self._memory is None else self._memory,
            views=views,
        )
        made = self._pipeline.build(inputs)
        self._memory = made.memory
        return made

    def hold_reason(self, rest: BuildResult, fleet: Fleet, words: OrchestratorStates, now_s: float) -> str:
        """Why these policies need permission to replace ``rest``, which is served; empty if they do not."""
        made = self.build(rest, fleet, frozenset(rest.snapshots))
        return hold_reason(rest, made, words, now_s)

    def with_canary(self, rest: BuildResult, fleet: Fleet, views: frozenset[View]) -> BuildResult:
        """``rest`` plus the snapshots for canary proxies; ``views`` are all that were requested."""
        if self.failure:
            return rest
        made = self.build(rest, fleet, frozenset(view for view in views if view.canary))
        mine = {view: found for view, found in made.snapshots.items() if view.canary}
        nodes = rest.inputs.nodes
        others = {node: item for node, item in rest.own.items() if not _in_canary(nodes, node)}
        own = {node: item for node, item in made.own.items() if _in_canary(nodes, node)}
        return replace(
            rest,
            snapshots=MappingProxyType({**rest.snapshots, **mine}),
            own=MappingProxyType({**others, **own}),
        )


def _in_canary(nodes: Mapping[str, View], node: str) -> bool:
    view = nodes.get(node)
    return view is not None and view.canary


def _sharing(new: PolicySet, old: PolicySet) -> PolicySet:
    """``new`` with the objects of ``old`` where they are equal, so that caches stay valid."""
    pools = {name: old.pools[name] if old.pools.get(name) == pool else pool for name, pool in new.pools.items()}
    return replace(new, pools=MappingProxyType(pools))
