"""A restart by an orchestrator: SIGTERM, then a new process."""

from collections.abc import Iterator
from typing import ClassVar, Final, Literal

from chaos.faults.actions import FaultAction, RestartEngine
from chaos.faults.cluster_chaos import ChaosMeshObject, ClusterContext, LitmusExperiment
from chaos.faults.fault import Fault
from policies.document import documented_field
from policies.quantity import Duration

_NO_DRAIN: Final = "the pod is deleted; it is drained first only if you have a preStop hook"


class RollingRestartFault(Fault):
    """Restart the target engines, one after another with ``inTurn``.

    With ``drain`` the agent drains the engine first: SIGTERM waits until it is empty or the deadline has passed.
    Give each target more time than that. Without ``drain``, SIGTERM is sent at once.
    """

    incident: ClassVar[str] = (
        "A rollout restarted replicas under load; running streams hung until callers gave up."
    )

    kind: Literal["rolling_restart"] = documented_field("rolling_restart", "Kind of the fault.")
    drain: bool = documented_field(True, "Whether the engine is drained first.")
    drain_deadline: Duration = documented_field(
        10.0, "Longest wait for the drain before SIGTERM.", unit="duration", gt=0, le=3600
    )
    shutdown_timeout: Duration = documented_field(
        0.0,
        "Time for running calls to finish after SIGTERM (vLLM: --shutdown-timeout); with 0s they hang and are "
        "lost.",
        why="vLLM's default",
        unit="duration",
        ge=0,
        le=3600,
    )

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (
            RestartEngine(
                engine=target,
                drain_within_s=self.drain_deadline if self.drain else None,
                shutdown_timeout_s=self.shutdown_timeout,
            ),
        )

    def chaos_mesh(self, _context: ClusterContext) -> Iterator[ChaosMeshObject]:
        grace_s = self.drain_deadline if self.drain else self.shutdown_timeout
        yield ChaosMeshObject(
            kind="PodChaos",
            fields={"action": "pod-kill", "gracePeriod": round(grace_s)},
            differs=_NO_DRAIN,
        )

    def litmus(self, context: ClusterContext) -> LitmusExperiment:
        return LitmusExperiment(
            experiment="pod-delete",
            env={
                "FORCE": "false" if self.drain else "true",
                "CHAOS_INTERVAL": str(max(1, round(context.turn_s))),
            },
            differs=_NO_DRAIN,
        )
