"""From policies, fleet and proxies to the snapshot of every view: the pure stages, run in their order.

``decide`` -> ``translate`` per view -> ``assemble`` per view. What stays between two runs is only memory of work
already done: with or without it the answer is the same.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter
from types import MappingProxyType
from typing import Final

from policies.model import PolicySet
from xds_server.assemble import Assembler
from xds_server.decide.decide import decide
from xds_server.decide.decisions import Decisions
from xds_server.fleet import Fleet
from xds_server.snapshot import Snapshot
from xds_server.translate.memo import Memo
from xds_server.translate.translate import translate
from xds_server.translate.view import View

REFERENCE_VIEW: Final = View()
"""Every pool and route, seen from no zone: always built, because it shows what there is to serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What snapshots are made of.

    ``views`` are those of connected proxies, ``calling_zones`` the zones that also have some on their way back;
    ``now_s`` is monotonic.
    """

    policies: PolicySet
    fleet: Fleet
    previous: Decisions | None
    views: frozenset[View]
    proxies_by_role: Mapping[str, int]
    now_s: float
    calling_zones: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What was made of ``inputs``: decisions and a snapshot for each view, and the seconds each stage took."""

    inputs: Inputs
    decisions: Decisions
    snapshots: Mapping[View, Snapshot]
    stages_s: Mapping[str, float]


class Pipeline:
    """Runs the stages and remembers what they made."""

    def __init__(self) -> None:
        self._memo = Memo()
        self._swept_for: PolicySet | None = None
        self._assembler = Assembler()

    def build(self, inputs: Inputs) -> Built:
        """Decisions and snapshots of these inputs."""
        started_s = perf_counter()
        decisions = decide(
            inputs.policies,
            inputs.fleet,
            inputs.previous,
            proxies_by_role=inputs.proxies_by_role,
            calling_zones=inputs.calling_zones.union(view.zone for view in self._wanted(inputs.views)),
            now_s=inputs.now_s,
        )
        decided_s = perf_counter()
        items = {
            view: translate(inputs.policies, inputs.fleet, decisions, view, self._memo)
            for view in self._wanted(inputs.views)
        }
        if inputs.policies is not self._swept_for:
            # Not every time: what unchanged pools were made of is not asked for, and would be forgotten.
            self._memo.sweep()
            self._swept_for = inputs.policies
        translated_s = perf_counter()
        snapshots = {view: self._assembler.assemble(found) for view, found in items.items()}
        return Built(
            inputs=inputs,
            decisions=decisions,
            snapshots=MappingProxyType(snapshots),
            stages_s=MappingProxyType(
                {
                    "decide": decided_s - started_s,
                    "translate": translated_s - decided_s,
                    "assemble": perf_counter() - translated_s,
                }
            ),
        )

    def peek(self, built: Built, view: View) -> Snapshot:
        """The snapshot of one more view, from the same inputs and decisions."""
        return self._assembler.assemble(
            translate(built.inputs.policies, built.inputs.fleet, built.decisions, view, self._memo)
        )

    @staticmethod
    def _wanted(views: Iterable[View]) -> frozenset[View]:
        return frozenset((REFERENCE_VIEW, *views))
