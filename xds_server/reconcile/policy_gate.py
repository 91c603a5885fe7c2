"""Checks of offered policies before they are served, with their logs and metrics."""

from collections.abc import Mapping
from typing import Final

import structlog

from policies.model import PolicySet
from xds_server.metrics.metric_registry import Metrics
from xds_server.model.fleet import Fleet, declared, redeclared
from xds_server.model.policy_state import AcceptedPolicies, RejectedPolicies, ServingPolicies
from xds_server.model.snapshot import Snapshot
from xds_server.model.type_urls import SHORT_NAMES
from xds_server.model.view import View
from xds_server.reconcile.orchestrator_states import OrchestratorStates
from xds_server.reconcile.pipeline import BuildResult
from xds_server.reconcile.shrink_guard import shrink_reason, view_parts

_SHOWN_ERRORS: Final = 10
_log = structlog.get_logger()


def fleet_for(policies: PolicySet, fleet: Fleet | None, serving: ServingPolicies | None) -> Fleet:
    """The fleet as these policies declare it, with the state of engines already served."""
    if fleet is None or serving is None:
        return declared(policies)
    return redeclared(policies, fleet, serving.policies)


def view_sizes(built: BuildResult, words: OrchestratorStates, now_s: float) -> dict[View, Mapping[str, int]]:
    """What each view is served, and how much of it."""
    # An engine's end may have been reported after the round of this build.
    fleet = words.apply(built.inputs.fleet, now_s)
    return {view: view_parts(snapshot, fleet) for view, snapshot in built.snapshots.items()}


def hold_reason(served: BuildResult, made: BuildResult, words: OrchestratorStates, now_s: float) -> str:
    """Why ``made`` must be held back, compared with what is served; empty if it need not be.

    Only views in both builds are compared: one that is no longer in use belonged to a proxy that just left.
    """
    after = view_sizes(made, words, now_s)
    before = {view: had for view, had in view_sizes(served, words, now_s).items() if view in after}
    return shrink_reason(before, after)


def log_rejected(refused: RejectedPolicies, serving: str) -> None:
    """Log why the files are refused; ``serving`` is the digest in force."""
    _log.warning(
        "policies.refused",
        problems=len(refused.errors),
        errors=[str(error) for error in refused.errors][:_SHOWN_ERRORS],
        serving=serving or "nothing: the xDS port stays closed until policies are accepted",
    )


def log_held(reason: str, serving: str) -> None:
    """Log why policies are held back."""
    _log.warning(
        "policies.held",
        reason=reason,
        release="`switchgear release`, or restart with --allow-shrink",
        serving=serving,
    )


def log_stale(serving: str) -> None:
    """Log that the version of the last run is served."""
    _log.warning(
        "policies.stale",
        reason="serving the version of the last run until the files are accepted",
        serving=serving,
    )


def log_accepted(accepted: AcceptedPolicies, fleet: Fleet) -> None:
    """Log that policies are served from now on."""
    _log.info(
        "policies.accepted",
        digest=accepted.digest[:12],
        pools=len(accepted.policies.pools),
        routes=len(accepted.policies.routes),
        engines=sum(map(len, fleet.pools.values())),
    )


def count_state(metrics: Metrics, state: str) -> None:
    """Count the state of the files."""
    metrics.policy_reloads.labels(result=state).inc()
    metrics.policy_refused.set(state == "refused")
    metrics.shrink_held.set(state == "held")


def count_resources(metrics: Metrics, served: Snapshot) -> None:
    """Set the number of served resources of each type; 0 for types no longer served."""
    for url, name in SHORT_NAMES.items():
        metrics.resources.labels(type=name).set(len(served.of(url)))
