"""Other policies for the proxies of a canary, decided beside those that are served to the rest.

Both sets of decisions see all proxies, so each divides what it allows by all of them: the parts that the canary
has of the one and the rest of the other never come to more than the larger of the two. Both see the same engines
and the same traffic. Nothing is known of engines that only the new policies name.
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
    """New policies on trial; ``with_canary`` adds to what is built for the rest what is built of them."""

    def __init__(
        self, accepted: AcceptedPolicies, serving: PolicySet, addressed: Callable[[Fleet], Fleet]
    ) -> None:
        self.accepted = accepted
        self.failure = ""
        """Why nothing could be built of them; empty while it can."""
        self._policies = _sharing(accepted.policies, serving)
        self._serving = serving
        self._addressed = addressed
        self._pipeline = Pipeline()
        self._memory: DecisionMemory | None = None

    def build(self, rest: BuildResult, fleet: Fleet, views: frozenset[View]) -> BuildResult:
        """What proxies of these views are served, where ``rest`` is what was built of ``fleet`` for the others."""
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
        """Why these policies need to be allowed, beside ``rest``, which is served; empty when they do not."""
        made = self.build(rest, fleet, frozenset(rest.snapshots))
        return hold_reason(rest, made, words, now_s)

    def with_canary(self, rest: BuildResult, fleet: Fleet, views: frozenset[View]) -> BuildResult:
        """``rest``, with what proxies of the canary are served; ``views`` are all that were asked for."""
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
    """``new`` with the very objects of ``old`` where they say the same: what is known of those stays known."""
    pools = {name: old.pools[name] if old.pools.get(name) == pool else pool for name, pool in new.pools.items()}
    return replace(new, pools=MappingProxyType(pools))
