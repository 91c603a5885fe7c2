"""What the cluster's word on an engine is: from its pod, its endpoint and its node. Pure."""

from xds_server.fleet.orchestrator import OrchestratorWord, Standing
from xds_server.sources.cluster.seen import Listed, Node, Pod


def is_gone(pod: Pod | None, listed: Listed | None, *, knows_pods: bool) -> bool:
    """Whether the pod that an endpoint stands for no longer exists; a new one of its name is another."""
    if listed is None or not listed.pod or not knows_pods:
        return False
    return pod is None or bool(listed.pod_uid and pod.uid != listed.pod_uid)


def word(
    pod: Pod | None, listed: Listed | None, node: Node | None, *, knows_pods: bool
) -> OrchestratorWord | None:
    """The gravest thing there is to say, None when nothing is. ``listed`` is None for pods found by labels."""
    if is_gone(pod, listed, knows_pods=knows_pods):
        return _said(Standing.GONE, f"pod {listed.pod if listed else ''} has been deleted")
    if pod is not None and pod.leaving:
        return _said(Standing.LEAVING, f"pod {pod.name} is being deleted")
    if listed is not None and listed.terminating:
        return _said(Standing.LEAVING, f"endpoint {listed.pod or listed.address} is terminating")
    if node is not None and node.fault:
        name = (pod.node if pod is not None else "") or (listed.node if listed is not None else "")
        return _said(Standing.UNFIT, f"node {name} {node.fault}")
    if pod is not None and pod.fault:
        return _said(Standing.UNFIT, f"pod {pod.name}: {pod.fault}")
    reason = _unready(pod, listed)
    return _said(Standing.NOT_READY, reason) if reason else None


def _unready(pod: Pod | None, listed: Listed | None) -> str:
    """Why the engine is not ready, empty when it is.

    A Service may publish pods that are not ready, so its endpoint decides where there is one. Where a pod has our
    own readiness gate, an endpoint may be unready by our own word; then the rest of the pod's conditions decides,
    or what we once said would be held against the engine for ever.
    """
    if listed is None or (pod is not None and pod.gated):
        return f"pod {pod.name} is not ready: {pod.unready}" if pod is not None and pod.unready else ""
    if listed.ready:
        return ""
    if pod is not None and pod.unready:
        return f"pod {pod.name} is not ready: {pod.unready}"
    return f"endpoint {listed.pod or listed.address} is not ready"


def _said(standing: Standing, reason: str) -> OrchestratorWord:
    return OrchestratorWord(standing=standing, reason=reason)
