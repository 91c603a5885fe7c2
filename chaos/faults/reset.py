"""A link that resets all connections, open and new."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from chaos.faults.actions import FaultAction, ShapeLink
from chaos.faults.cluster_chaos import (
    ANSWERS_PATH,
    ChaosMeshObject,
    ClusterContext,
    LitmusExperiment,
    http_chaos,
    litmus_http,
)
from chaos.faults.fault import Fault
from policies.document import documented_field


class ResetFault(Fault):
    """Reset every connection from proxies to the engine, also during answers."""

    incident: ClassVar[str] = (
        "A connection-tracking table overflowed and reset the connections that it had dropped."
    )

    kind: Literal["reset"] = documented_field("reset", "Kind of the fault.")

    def actions(self, target: str) -> tuple[FaultAction, ...]:
        return (ShapeLink(end="engine", target=target, reset=True),)

    def chaos_mesh(self, context: ClusterContext) -> Iterator[ChaosMeshObject]:
        differs = "aborts each new request; open connections are left alone"
        yield http_chaos(context, "Request", ANSWERS_PATH, differs=differs, abort=True)

    def litmus(self, context: ClusterContext) -> LitmusExperiment:
        return LitmusExperiment(
            experiment="pod-http-reset-peer",
            env=litmus_http(context, RESET_TIMEOUT="0", TOXICITY="100"),
            differs="/health and /metrics are reset too",
        )
