"""A restart as an orchestrator does it: SIGTERM, and a new process in its place."""

from collections.abc import Iterator
from typing import ClassVar, Final, Literal

from chaos.faults.actions import FaultAction, RestartEngine
from chaos.faults.cluster_chaos import ChaosMeshObject, ClusterContext, LitmusExperiment
from chaos.faults.fault import Fault
from policies.document import documented_field
from policies.quantity import Duration

_NO_DRAIN: Final = "the pod is deleted; it is drained first only by a preStop hook of yours"


class RollingRestartFault(Fault):
    """One engine after another when the strike says ``inTurn``.

    With ``drain`` its agent is told first, and SIGTERM waits until the agent says that nothing is left or the
    deadline has passed; the time that a target has should be longer than that. Without, SIGTERM comes at once.
    """

    incident: ClassVar[str] = (
        "A rollout restarted replicas under load; streams in flight hung until callers gave up."
    )

    kind: Literal["rolling_restart"] = documented_field("rolling_restart", "Kind of the fault.")
    drain: bool = documented_field(True, "Whether the engine is drained first.")
    drain_deadline: Duration = documented_field(
        10.0, "How long SIGTERM waits for the drain.", unit="duration", gt=0, le=3600
    )
    shutdown_timeout: Duration = documented_field(
        0.0,
        "How long calls in flight may go on after SIGTERM (vLLM: --shutdown-timeout); 0s hangs and loses them.",
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
